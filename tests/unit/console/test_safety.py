"""Who may use the console, and what it answers to anybody else."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from botocore.exceptions import ClientError
from starlette.responses import Response

from a2a_serverless.tasks.head import Head
from a2a_serverless_tools.console import app
from a2a_serverless_tools.console.app import STATIC, Sessions
from a2a_serverless_tools.operate import waiting
from tests.support import commits
from tests.support.observed import logged
from tests.support.present import present
from tests.unit.console.conftest import Dev, developing

PAGES = ["/status", "/tasks", "/chat", "/queues", "/card", "/tasks?text=x"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with developing(tmp_path_factory.mktemp("dev") / "dev.db") as made:
        yield made


@pytest.fixture
def http(running: Dev) -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, base_url=running[0].url, timeout=60) as client:
        yield client


@pytest.fixture
def person(running: Dev, http: httpx.Client) -> httpx.Client:
    """A browser that has opened the printed URL."""
    assert http.get(running[1].open_url()).status_code == 303
    return http


def test_the_lines_of_a_request_have_an_id(person: httpx.Client, monkeypatch: Any) -> None:
    """Whatever is logged while a page is made names the request, each another one."""

    def leads(path: str) -> Response:
        logging.getLogger("a2a_serverless").warning("seen")
        return Response(path)

    monkeypatch.setattr(app, "_to", leads)
    with logged() as lines:
        for _ in range(2):
            person.get("/_console")
    seen = [line["correlation_id"] for line in lines if line["message"] == "seen"]
    assert len({*seen}) == 2


# -- people ------------------------------------------------------------------------------------


def test_the_printed_url_opens_it_once(running: Dev, http: httpx.Client) -> None:
    """Its token is exchanged for a cookie that no script reads and no other site sends."""
    url = running[1].open_url()
    answer = http.get(url)
    assert (answer.status_code, answer.headers["location"]) == (303, "/_console/chat")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/_console"))
    assert url.rpartition("=")[2] not in cookie
    with httpx.Client(trust_env=False, timeout=60) as other:
        again = other.get(url)
    assert (again.status_code, "used already" in again.text) == (403, True)
    assert http.get(url).headers["location"] == "/_console/chat"  # its own browser is in already


def test_processes_share_who_may_use_it(tmp_path: Path) -> None:
    """What one has printed or exchanged counts in both, also while one replaces the other."""
    leaving, serving = Sessions(tmp_path), Sessions(tmp_path)
    token = leaving.one_time_token(may_act=True)
    looking = present(serving.exchange(leaving.one_time_token(may_act=False)))
    acting = present(leaving.exchange(token))
    assert serving.exchange(token) is None
    assert [serving.may_act(cookie) for cookie in (acting, looking, token)] == [True, False, None]
    assert token not in str([*tmp_path.iterdir()])
    for _ in range(app._SESSIONS):
        leaving.exchange(leaving.one_time_token(may_act=True))
    assert serving.may_act(acting) is None


def test_a_page_is_for_who_has_the_cookie(http: httpx.Client) -> None:
    """Without one, and with a wrong one, it says how to get in, and nothing of a task."""
    for cookies in ({}, {f"a2a_console_{http.base_url.port}": "guessed"}):
        http.cookies = httpx.Cookies(cookies)
        for path in PAGES:
            answer = http.get(f"/_console{path}")
            assert (answer.status_code, "a2a-serverless console" in answer.text) == (403, True)


def test_every_answer_is_locked_down(person: httpx.Client) -> None:
    """No inline script, no eval, nothing from elsewhere, in no frame, kept by no cache."""
    for path in (*PAGES, "/static/console.css", "/open"):
        answer = person.get(f"/_console{path}")
        policy, headers = answer.headers["content-security-policy"], answer.headers
        assert all(part in policy for part in ("default-src 'none'", "script-src 'self';")), policy
        assert not any(part in policy for part in ("unsafe", "http")), policy
        assert (headers["x-frame-options"], headers["cache-control"]) == ("DENY", "no-store")
        assert headers["x-content-type-options"] == "nosniff"
        assert 'src="http' not in answer.text


def test_another_host_or_origin_is_refused(person: httpx.Client) -> None:
    """Also with the cookie: a page of another site, and a name that was made to lead here."""
    foreign = ("https://elsewhere.example", "null")
    for headers in ({"Host": "rebound.example"}, *({"Origin": it} for it in foreign)):
        assert person.get("/_console/tasks", headers=headers).status_code == 403
        assert person.post("/_console/chat", data={"text": "x"}, headers=headers).status_code == 403


def opened(dev: Dev, task_id: str) -> Head:
    """A task that no worker has."""
    return asyncio.run(commits.opened(dev[1]._inspector.storage, task_id=task_id))


def test_a_write_says_its_origin_and_that_it_is_meant(running: Dev, person: httpx.Client) -> None:
    """It is refused without Origin, does nothing unconfirmed, and is never a GET."""
    stack, console = running
    head = opened(running, "to-cancel")
    path = f"/_console/task/{head.scope}/to-cancel/cancel"
    assert person.post(path, data={"confirmed": "yes"}).status_code == 403
    answer = person.post(path, headers={"Origin": stack.url})
    assert "Nothing was done" in person.get(answer.headers["location"]).text
    assert person.get(path).status_code == 405
    assert asyncio.run(console._inspector.storage.head("to-cancel")) == head


def test_who_may_look_acts_by_no_route(running: Dev) -> None:
    """Each route but a GET is refused with the cookie of a link for looking; pages have no form."""
    stack, console = running
    head = opened(running, "looked-at")
    named = {"scope": head.scope, "id": "looked-at", "queue": "undecodable_queue", "call": "x"}
    acting = looking = 0
    with httpx.Client(trust_env=False, base_url=stack.url, timeout=60) as reader:
        assert reader.get(console.open_url(may_act=False)).status_code == 303
        for method, route, _ in console._pages.routes():
            path = re.sub(r"{(\w+)(:int)?}", lambda found: named.get(found[1], "0"), route)
            if method != "GET":
                data = {"confirmed": "yes", "text": "x", "scope": head.scope, "name": head.scope}
                answer = reader.post(f"/_console{path}", data=data, headers={"Origin": stack.url})
                assert (answer.status_code, "for looking alone" in answer.text) == (403, True), path
                acting += 1
                continue
            asked = {"act": "cancel", "scope": head.scope, "id": "looked-at"}
            answer = reader.get(f"/_console{path}", params=asked)
            assert answer.status_code < 500, path
            assert 'method="post"' not in answer.text, path
            looking += 1
    assert (acting, looking) == (10, 14)
    assert asyncio.run(console._inspector.storage.head("looked-at")) == head


def test_the_root_is_the_consoles_for_browsers_alone(running: Dev, person: httpx.Client) -> None:
    """A client's request for it is the agent's, as deployed."""
    answer = person.get("/", headers={"Accept": "text/html,*/*"})
    assert answer.headers["location"] == "/_console"
    assert person.get("/_console").headers["location"] == "/_console/chat"
    assert "console" not in person.get("/", headers={"Accept": "application/json"}).text


def test_a_place_that_is_none_is_refused(person: httpx.Client) -> None:
    """With a sentence and the console's headers; what is not there is a page, or nothing."""
    ends = ("unknown", "unknown/live", "un%20known", "unknown/part/0/0")
    for path in (*(f"/task/x/{end}" for end in ends), "/nowhere"):
        assert person.get(f"/_console{path}").status_code == 404, path
    after = ("x", "1/x", f"{'9' * 15}/")
    for path in (
        "/tasks?scope=AAAAAAAAAAAAAAAAAAAAAA&after=x",
        *(f"/tasks?after={place}" for place in after),
        *(f"/journal?before={place}" for place in ("!", "~~~", "ACT%23", "ACT%231%23a", "%00")),
        *(f"/task/{'x' * 3000}/t{end}" for end in ("", "/live")),
    ):
        answer = person.get(f"/_console{path}")
        assert answer.status_code == 400, path
        assert "This cannot be shown" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_an_error_of_ours_has_the_headers_of_all_pages(
    running: Dev, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has meant its answer, and it shows nothing."""
    monkeypatch.setattr(app, "_to", Mock(side_effect=ZeroDivisionError))
    transport = httpx.ASGITransport(running[1].app, raise_app_exceptions=False)

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url=running[0].url) as client:
            return await client.get("/", headers={"Accept": "text/html"})

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_an_error_of_aws_is_a_sentence(person: httpx.Client, monkeypatch: Any) -> None:
    """Such as credentials that have expired while the console runs."""
    fault = ClientError({"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "Query")
    monkeypatch.setattr(waiting, "due_tasks", AsyncMock(side_effect=fault))
    answer = person.get("/_console/queues")
    assert (answer.status_code, "ExpiredToken" in answer.text) == (502, True)
    assert "This cannot be shown" in answer.text


@pytest.mark.parametrize("key", ["top-secret-key", "Bearer top-secret-key"])
def test_a_key_is_sent_and_not_shown(running: Dev, person: httpx.Client, key: str) -> None:
    """The one that the operator gives, or the token of an issuer; with later calls, too."""
    header, other = "Authorization", "X-API-Key"
    if not key.startswith("Bearer "):
        header, other = other, header
    own, context = {"Origin": running[0].url}, uuid.uuid4().hex
    for form in ({"text": "hello", "key": key}, {"text": "and again"}):
        person.post("/_console/chat", data={"context": context, **form}, headers=own)
    wire = running[1]._pages._chat._wires[context]
    assert wire.key == key
    shown = person.get("/_console/chat/wire", params={"context": context}).text
    assert shown.count(f"{header}: (yours)") == 2
    assert other not in shown
    assert "top-secret-key" not in shown + repr(wire)


# -- what is shipped ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "digest"),
    [
        ("htmx-2.0.11", "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"),
        ("idiomorph-0.8.0", "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96"),
    ],
)
def test_a_library_is_the_one_that_its_project_has_published(file: str, digest: str) -> None:
    """The file is as it is in the npm package, with its licence beside it."""
    found = hashlib.sha256((STATIC / f"{file}.min.js").read_bytes()).hexdigest()
    assert found == digest
    licence = STATIC / f"{file.partition('-')[0]}-LICENSE.txt"
    assert licence.read_text(encoding="utf-8").startswith("Zero-Clause BSD")
