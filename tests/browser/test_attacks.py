"""What an agent or a client may try against the browser of who looks at its task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskState
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from playwright.sync_api import Browser, expect

from a2a_serverless.tasks.entries import ArtifactWritten, Caller
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.rules import releasing
from tests.browser import seeds
from tests.browser.conftest import Site, Visit, visiting
from tests.unit.push.receivers import Receiver

pytestmark = [pytest.mark.browser, pytest.mark.long]

RUN = "window.pwned=1"

MARKDOWN = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f"<svg onload='{RUN}'></svg>",
    f"<svg><script>{RUN}</script></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    f"<a href='javascript:{RUN}' id=hostile>click</a>",
    f"[click](javascript:{RUN})",
    f"[click](JaVaScRiPt:{RUN})",
    f"[click](&#106;avascript:{RUN})",
    f"[click](data:text/html,<script>{RUN}</script>)",
    f"[click](vbscript:{RUN})",
    "![x](https://elsewhere.example/pixel.png)",
    f"![x](javascript:{RUN})",
    "<style>body{display:none}</style>",
    f"<body onload='{RUN}'>",
    "<form action='https://elsewhere.example'><input name=x><button>go</button></form>",
    "<meta http-equiv=refresh content='0;url=https://elsewhere.example'>",
    "<div hx-get='/_console/tasks' hx-trigger='load' hx-swap='outerHTML' hx-target='body'>x</div>",
    f'"><script>{RUN}</script>',
    f"</textarea></title></pre><script>{RUN}</script>",
    f"<details open ontoggle='{RUN}'>x</details>",
    f"[x]: javascript:{RUN}\n\n[x]",
    f"<https://a.example/'onmouseover='{RUN}>",
    f"<javascript:{RUN}>",
    f"<JAVASCRIPT:{RUN}//https://a.example>",
    "<data:text/html;base64,PHNjcmlwdD53aW5kb3cucHduZWQ9MTwvc2NyaXB0Pg==>",
    f"[click][a]\n\n[a]: <javascript:{RUN}> 'https://a.example'",
    f"[a][]\n\n[a]: data:text/html,<script>{RUN}</script>",
    f"[click](java\tscript:{RUN})",
    f"[click](java&Tab;script&colon;{RUN})",
    f"[click](\x01javascript:{RUN})",
    f"[click](https://a.example 'x\" onmouseover=\"{RUN}')",
    f'[click](https://a.example/"onmouseover="{RUN})',
    "[click](//elsewhere.example/x)",
    "[click](\\\\elsewhere.example)",
    "[click](/_console/task/x/y/cancel)",
    "[click](?view=events)",
    "[click](file:///etc/passwd)",
    "[click](blob:https://a.example/1)",
    "[click](view-source:https://a.example)",
    f'![x" onerror="{RUN}](https://elsewhere.example/x.png "t\' onerror={RUN}")',
    f'```js" onload="{RUN}\nx\n```',
    f"```\n</code></pre><script>{RUN}</script>\n```",
    f"|a|b|\n|:-|-:|\n|<img src=x onerror={RUN}>|`</td><script>{RUN}</script>`|",
    f"<script>\n{RUN}\n</script>",
    f"<!-- --><script>{RUN}</script>",
    f"<?php ?><script>{RUN}</script>",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<!DOCTYPE x [<!ENTITY y '<script>{RUN}</script>'>]>&y;",
    f"&lt;script&gt;{RUN}&lt;/script&gt; &#x3c;img src=x onerror={RUN}&#x3e;",
)
"""Links, images, tables, code and blocks of HTML in Markdown, and elements that run or load."""

MARKUP = (
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text y=9>x</text></a></svg>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}></video><audio src=x onerror={RUN}>",
    "<base href='https://elsewhere.example/'>",
    "<link rel=stylesheet href='https://elsewhere.example/x.css'>",
    "<link rel=prefetch href='https://elsewhere.example/x'>",
    f"<object data='javascript:{RUN}'></object><embed src='javascript:{RUN}'>",
    f"<template shadowrootmode=open><script>{RUN}</script></template>",
    "<form id=htmx><input name=config></form><img name=body id=lost>",
    f"<div hx-on::load='{RUN}' data-hx-get='/_console/tasks' hx-trigger=load>x</div>",
    f"<scr\0ipt>{RUN}</scr\0ipt>",
    f"+ADw-script+AD4-{RUN}+ADw-/script+AD4-",
    f"\u202e>tpircs/<{RUN}>tpircs<",
    f"<script\u2028>{RUN}</script\u2029>",
    "{{ 7 * 7 }}{% print(1) %}",
    "{{ cycler.__init__.__globals__ }}{% include 'base.html' %}{#",
    "=cmd|' /C calc'!A0",
    '"}],"pwned":1,"x":[{"y":"',
    "\x1b]52;c;eA==\x07\x1b]8;;https://elsewhere.example\x1b\\click\x1b]8;;\x1b\\",
    "https://elsewhere.example/\r\nSet-Cookie: a=b",
    "../../../_console/open?token=x",
    "Z\u0351\u0352\u0353\u0354" * 300,
    "x" * 3_000,
)
"""Of other places: mutated markup, clobbered names, templates, terminals, spreadsheets."""

TASKS = (
    *(MARKDOWN[number : number + 13] for number in range(0, len(MARKDOWN), 13)),
    *(MARKUP[number : number + 2] for number in range(0, len(MARKUP), 2)),
)
"""What is in the artifacts of each task; the first and the last are in its other places, too."""

FILES = (
    "image/svg+xml; charset=utf-8",
    " IMAGE/SVG+XML ",
    "text/html;charset=utf-7",
    "application/xhtml+xml",
    "text/xml",
    "application/javascript",
    "text/css",
    "multipart/x-mixed-replace; boundary=x",
    "application/pdf",
    "image/x-icon",
    "image/png, text/html",
    "text/html\nX-Bad: 1",
    "",
    "image/png",
)
"""Media types that a browser would run, or guess at; the last one is said to be an image."""

SVG = "<svg xmlns='http://www.w3.org/2000/svg'"
HTML = f"{SVG} onload='{RUN}'><script>{RUN}</script></svg>".encode()


@pytest.fixture(scope="module")
def attacked(site: Site) -> Site:
    """One with tasks in which every place of every kind is an attack."""
    storage, scribe = site.storage, site.scribe
    for number, evils in enumerate(TASKS):
        evil, last = evils[0], evils[-1]
        said = SendMessageRequest(message=Message(message_id=evil, parts=[Part(text=evil)]))
        who: Any = {"task_id": f"attack-{number}", "caller": Caller(evil)}
        head = seeds.done(storage.open_task(evil[:100], said, **who)).head
        scribe.claim(head, "a", last)
        working = seeds.said(TaskState.TASK_STATE_WORKING, last)
        scribe.commit(head, *map(artifact_of, evils), working, token="a")
        end = AttemptEnd(token="a", reason=last, correlation_id=last)
        seeds.done(storage.change(head, partial(releasing, end=end)))
    return site


def artifact_of(evil: str) -> ArtifactWritten:
    """An artifact that is an attack in each of its places."""
    parts = [
        Part(text=evil),
        Part(text=evil, media_type="text/markdown"),
        Part(data=ParseDict({evil: [evil]}, Value())),
        Part(url=evil, filename=evil),
        Part(raw=HTML, media_type=evil, filename=evil),
    ]
    return ArtifactWritten(Artifact(artifact_id=evil, name=evil, parts=parts))


@pytest.fixture
def visit(browser: Browser, attacked: Site) -> Iterator[Visit]:
    with visiting(browser, attacked, viewport={"width": 400, "height": 800}) as one:
        yield one


FOREIGN = (
    "main script, iframe, object, embed, base, main link, main style, main meta, main template,"
    " video, audio, main [hx-get]:not(#live), form[action^=http], main [id=htmx],"
    " main [name=body], .bubble img"
)

SEEN = """foreign => {
  const all = selector => [...document.querySelectorAll(selector)];
  const own = name => name.startsWith('on') || name === 'style' || name.includes('hx-on');
  return {
    pwned: window.pwned,
    foreign: all(foreign).length,
    handlers: all('*').flatMap(e => [...e.attributes]).filter(a => own(a.name)).length,
    links: all('.bubble a').map(a => a.getAttribute('href')),
    width: document.documentElement.scrollWidth,
    tasks: all('h1.id, h1.title').length,
    texts: all('.bubble .text').map(e => e.innerText.trim()),
  };
}"""

FETCH = "url => fetch(url, {credentials: 'include'}).then(a => a.text(), e => 'refused')"
IMAGE = """url => new Promise(done => {
  const image = new Image();
  Object.assign(image, {onload: () => done('shown'), onerror: () => done('refused'), src: url});
})"""
POST = """url => {
  const form = document.createElement('form');
  Object.assign(form, {method: 'post', action: url});
  form.innerHTML = '<input name=confirmed value=yes>';
  document.body.append(form);
  form.submit();
}"""


def test_nothing_runs_anywhere(visit: Visit, attacked: Site) -> None:
    """Many attacks at every place of a task: no script, no request, no broken page."""
    views = [*product(range(len(TASKS)), ("conversation", "timeline"))]
    views += product(range(0, len(TASKS), 9), ("events", "cost"))
    for number, view in views:
        visit.task(attacked, f"attack-{number}", view)
        found = visit.page.evaluate(SEEN, FOREIGN)
        where = (TASKS[number], view, found)
        assert found["pwned"] is None, where
        assert found["foreign"] == found["handlers"] == 0, where
        own = f"/_console/task/{attacked.storage.scope.digest}/attack-{number}/part/"
        for link in found["links"]:
            assert link.startswith(("https://", own)), where
        assert found["width"] <= 400, where
        assert found["tasks"] == 1, where
        plain = {evil.strip() for evil in TASKS[number] if evil.isascii() and evil.isprintable()}
        assert view != "conversation" or plain <= {*found["texts"]}, where
    assert all(url.startswith(visit.url) for url in visit.asked), visit.asked


@pytest.mark.long(but=1)
def test_a_file_is_never_a_page(visit: Visit, attacked: Site) -> None:
    """Whatever media type an agent gives it: it is a download, or an image that was checked."""
    head = attacked.scribe.begin("attack-files", "x")
    files = [Part(raw=HTML, media_type=kind, filename="\u202egpj.exe") for kind in FILES]
    entry = ArtifactWritten(Artifact(artifact_id="files", parts=files))
    attacked.scribe.commit(head, entry, token="a")
    task = f"{visit.url}/_console/task/{attacked.storage.scope.digest}/attack-files"
    base = f"{task}/part/e3-0"
    for number, kind in enumerate(FILES):
        answer = visit.context.request.get(f"{base}/{number}")
        assert answer.status == 200
        is_image = kind == "image/png"
        assert answer.headers["content-type"] == (kind if is_image else "application/octet-stream")
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["content-disposition"].startswith("attachment;"), kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "x-bad" not in answer.headers
    visit.task(attacked, "attack-files")
    expect(visit.page.locator(".file a").first).to_have_text("\\u202egpj.exe")
    loaded = visit.page.evaluate(
        "url => new Promise(done => { const s = document.createElement('script'); s.src = url;"
        " s.onload = () => done(true); s.onerror = () => done(false); document.head.append(s) })",
        f"{base}/5",
    )
    assert loaded is False
    assert visit.page.evaluate("window.pwned") is None


def test_another_page_of_this_machine_reads_nothing(visit: Visit, attacked: Site) -> None:
    """It has the same site, another port: no frame, no script, no form and no fetch gets in."""
    own = f"{visit.url}/_console"
    path = f"{own}/task/{attacked.storage.scope.digest}/attack-0"
    with Receiver() as other:
        visit.page.goto(other.url())
        assert visit.page.evaluate("document.cookie") == ""
        assert visit.page.evaluate(FETCH, f"{own}/tasks") == "refused"
        assert visit.page.evaluate(IMAGE, f"{path}/part/e3-0/4") == "refused"
        visit.page.evaluate(POST, f"{path}/cancel")
        expect(visit.page.locator("body")).to_contain_text("The header Origin says")
        head = seeds.done(attacked.storage.head("attack-0"))
        assert head is not None
        assert head.cancel is None
        assert visit.context.cookies(other.url()) == []  # nor is it sent the cookie


def test_a_page_says_that_it_is_out_of_date(browser: Browser, site: Site) -> None:
    """While the console does not answer, a page does not look as if it followed the task."""
    seeds.killed(site.scribe, "followed")
    with visiting(browser, site) as visit:
        lost = visit.page.locator("#lost")
        visit.task(site, "followed")
        expect(lost).to_be_hidden()
        for cookie in site.console.sessions._folder.glob("cookie-*"):
            cookie.unlink()  # as of a new dev on the same port
        expect(lost).to_contain_text("does not answer")
        visit.page.goto(site.console.open_url())
        visit.task(site, "followed")
        expect(lost).to_be_hidden()
        visit.context.set_offline(offline=True)
        expect(lost).to_be_visible()
        visit.context.set_offline(offline=False)
        expect(lost).to_be_hidden()
