"""Callbacks: one POST to an address ends a wait of an agent's code."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import pytest
from a2a.types import AgentCard
from pydantic import BaseModel

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http import callbacks
from a2a_serverless.http.app import create_app
from a2a_serverless.worker import Posted, TaskContext
from a2a_serverless.worker.failures import WrongCallError
from tests.support.a2a_calls import client_of
from tests.support.observed import recorded
from tests.support.workers import S
from tests.unit.worker.test_steps import Handle, Stand

URL = "https://agent.example"


class Payment(BaseModel):
    amount: int


class Desk:
    """An agent that waits for a payment, its worker, and the service that takes the POST."""

    def __init__(self, card: AgentCard, handle: Handle | None = None, **settings: Any) -> None:
        self.urls: list[str] = []
        self.posted: list[Posted] = []
        self.steps = 0
        self.stand = Stand(handle or self._handle, public_url=URL, auth="none", **settings)
        app = create_app(self.stand.bench.settings, self.stand.bench.backends, card)
        self.client = client_of(app, URL)

    async def _handle(self, ctx: TaskContext) -> None:
        await ctx.step("plan", self._plan)
        callback = await ctx.callback("paid")
        self.urls.append(callback.url)
        self.posted.append(await callback.wait(timeout_s=600))
        await ctx.complete(self.posted[-1].text)

    def _plan(self) -> None:
        self.steps += 1

    async def begin(self) -> str:
        await self.stand.send()
        await self.stand.work()
        return self.urls[0]

    async def post(self, url: str = "", **content: Any) -> int:
        answer = await self.client.post(url or self.urls[0], **content)
        return answer.status_code


async def test_one_post_ends_the_wait(card: AgentCard) -> None:
    """The code goes on behind its steps, by the same address; a second POST is refused."""
    desk = Desk(card)
    url = await desk.begin()
    assert (url.startswith(f"{URL}/callbacks/"), len(urlsplit(url).path) < 400) == (True, True)
    assert await desk.post(json={"amount": 7}) == 200
    assert await desk.post(json={"amount": 8}) == 409
    head = await desk.stand.work()
    assert (head.state, desk.steps, len(set(desk.urls))) == (S.TASK_STATE_COMPLETED, 1, 1)
    (posted,) = desk.posted
    assert (posted.data, posted.media_type) == ({"amount": 7}, "application/json")
    assert await desk.post() == 410


async def test_the_code_gets_what_was_posted(card: AgentCard) -> None:
    """A form as a dict, anything as text and bytes."""
    form, deep = {"a": ["1", "2"], "b": ""}, "[" * 100_000
    cases: list[tuple[dict[str, Any], object, str]] = [
        ({"data": form}, form, "a=1&a=2&b="),
        ({"content": b'\xef\xbb\xbf{"a": 1}'}, {"a": 1}, '{"a": 1}'),  # with a byte-order mark
        ({"content": b"\xff\x00"}, None, "\ufffd\x00"),
        ({"content": deep.encode()}, None, deep),
        ({}, None, ""),
    ]
    for content, data, text in cases:
        desk = Desk(card)
        await desk.begin()
        assert await desk.post(**content) == 200
        await desk.stand.work()
        assert [(posted.data, posted.text) for posted in desk.posted] == [(data, text)]


async def test_a_get_confirms_nothing(card: AgentCard) -> None:
    """Scanners of mails follow links: a GET shows a page with a button that posts its fields."""
    desk = Desk(card)
    url = await desk.begin()
    page = await desk.client.get(url)
    assert (page.status_code, '<form method="post">' in page.text) == (200, True)
    asked = await desk.client.get(url, params={"decision": 'no"><script>'})
    assert 'name="decision" value="no&quot;&gt;&lt;script&gt;"' in asked.text
    assert "<script" not in asked.text
    assert page.headers["cache-control"] == "no-store"
    # "no-referrer" would make the button's Origin "null", which a server on one machine refuses.
    assert page.headers["referrer-policy"] == "strict-origin"
    assert (await desk.stand.head()).turn.signaled == 0
    refused = await desk.client.put(url)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_a_post_beside_an_open_question_is_kept(card: AgentCard) -> None:
    """The code has not waited for it yet, and finds it behind its client's answer."""

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("paid")
        desk.urls.append(callback.url)
        answer = await ctx.ask("By whom?")
        posted = await callback.wait(timeout_s=600)
        await ctx.fail(f"{answer.text}: {posted.text}")

    desk = Desk(card, handle)
    await desk.begin()
    assert (await desk.post(content=b"7"), await desk.post(content=b"8")) == (200, 409)
    await desk.stand.bench.follow_up(await desk.stand.head(), "pat")
    await desk.stand.work()
    assert await desk.stand.text() == "pat: 7"


async def test_what_no_agent_could_read_is_refused(card: AgentCard) -> None:
    """A sentence says what it is, and the address is not used up."""
    desk = Desk(card)
    url = await desk.begin()
    for name, value, named in (
        ("Content-Type", "multipart/form-data; boundary=b", "multipart/form-data is"),
        ("Content-Type", "text/plain; charset=ISO-8859-1", "The charset iso-8859-1 is"),
        ("Content-Encoding", "gzip", "Content-Encoding gzip is"),
        ("Content-Type", "text/plain; charset*=%00''a", "This Content-Type is"),
    ):
        answer = await desk.client.post(url, content=b"x", headers={name: value})
        assert answer.status_code == 415
        assert answer.json()["error"]["message"].startswith(f"{named} not read: send JSON")
    assert await desk.post(content=b"{}", headers={"Content-Type": 'a/b; charset="UTF-8"'}) == 200


async def test_an_address_is_of_one_wait(card: AgentCard) -> None:
    """A token that was changed, or made with another secret, names nothing.

    Another spelling that decodes to the same bytes neither. Strangers have a rate of their own:
    beyond it an address that counts is answered.
    """
    desk, other = Desk(card), Desk(card)
    url = await desk.begin()
    assert await desk.post(url[:-2] + "AA") == 404
    assert await desk.post(f"{URL}/callbacks/") == 404
    assert await other.post(url) == 404
    assert await desk.post(content=b"x" * 262_145) == 413
    assert (await desk.stand.head()).turn.signaled == 0
    desk = Desk(card, requests_per_s=1)
    url = await desk.begin()
    spellings = [f"{url}!!!!", f"{url[:-2]}~~~~{url[-2:]}", f"{url}$$$$"]
    assert [await desk.post(each) for each in spellings] == [404, 404, 429]
    assert [await desk.post() for _ in range(3)] == [200, 409, 429]


async def test_a_schema_gives_the_data_its_type(card: AgentCard) -> None:
    """What does not fit is an error; the client of an agent that does not catch it reads why."""

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("paid")
        desk.urls.append(callback.url)
        posted = await callback.wait(schema=Payment)
        await ctx.fail(f"{posted.data!r}")

    texts = []
    for amount in (7, "much"):
        desk = Desk(card, handle)
        await desk.begin()
        await desk.post(json={"amount": amount})
        await desk.stand.work()
        task = await desk.stand.bench.task(desk.stand.task)
        texts.append(task.status.message.parts[0].text)
    assert texts[0] == "Payment(amount=7)"
    assert texts[1].startswith("What was posted does not fit: amount: Input should be a valid int")


async def test_a_browser_gets_pages(card: AgentCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what became of its form, of a wrong address, a refusal, an error; others get JSON."""
    desk, busy = Desk(card), Desk(card, requests_per_s=1)
    url, busy_url = await desk.begin(), await busy.begin()
    for each in (desk, busy):
        each.client.headers["Accept"] = "text/html,*/*;q=0.8"
    pages = [
        (await desk.client.post(path, data={"a": "1"}), status, f"<p>{text}")
        for path, status, text in (
            (url, 200, "Done: the agent goes on with this."),
            (url, 409, "This was answered already: the first answer counts."),
            (f"{URL}/callbacks/x", 404, "Nothing waits at this address"),
        )
    ]
    gets = [await busy.client.get(busy_url) for _ in range(3)]
    assert [page.status_code for page in gets[:2]] == [200, 200]
    assert int(gets[-1].headers["retry-after"]) >= 1
    fails = AsyncMock(side_effect=UnavailableError("no answer"))
    monkeypatch.setattr(callbacks, "signal", fails)
    failed = await desk.client.post(url)
    pages += [(gets[-1], 429, "<p>"), (failed, 500, "The service is busy")]
    for page, status, text in pages:
        assert (page.status_code, text in page.text) == (status, True)
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["cache-control"] == "no-store"
    told = await desk.client.post(url, headers={"Accept": "*/*"})
    assert (told.status_code, told.json()["error"]["code"]) == (500, 500)


async def test_a_callback_needs_an_address_and_the_agents_own_code(card: AgentCard) -> None:
    """The sentences say the right call."""

    async def inner(ctx: TaskContext) -> None:
        await ctx.callback("paid")

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match=r"ctx\.callback is called within a step"):
            await ctx.step("outer", inner, ctx)
        if next(has_url):
            callback = await ctx.callback("paid")
            with pytest.raises(WrongCallError, match=r"callback\.wait is called within a thread"):
                await ctx.run_sync(asyncio.run, callback.wait())
        else:
            with pytest.raises(WrongCallError, match="A2A_PUBLIC_URL"):
                await ctx.callback("paid")
        await ctx.complete()

    has_url = iter((True, False))
    for stand in (Desk(card, handle).stand, Stand(handle)):
        await stand.send()
        assert (await stand.work()).state == S.TASK_STATE_COMPLETED


async def test_no_trace_shows_the_token(
    card: AgentCard, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a line of the log."""
    caplog.set_level("DEBUG")
    with recorded() as spans:
        desk = Desk(card)
        url = await desk.begin()
        await desk.post()
        await desk.post()
    token = urlsplit(url).path.rpartition("/")[2]
    own = [str(vars(record)) for record in caplog.records if not record.name.startswith("http")]
    shown = [span.to_json() for span in spans.take()]
    assert any("/callbacks/" in text for text in shown)
    assert token not in "".join([*own, *shown, *capsys.readouterr()])
