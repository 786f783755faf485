"""Checks that need an address alone: each passes on the local stack, and fails on a broken way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.types import Task
from google.protobuf.json_format import ParseDict

from a2a_serverless.http.operations import _MAX_ANSWER_BYTES, _sent_bytes
from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.http_server import HttpServer, bind
from tests.live import files, messages, streams, webhooks
from tests.live.checks import CHECKS
from tests.live.findings import Check, Outcome
from tests.live.messages import ANSWERED_BYTES, SENT_BYTES
from tests.live.subject import ordered
from tests.live.webhooks import Hook, Notification
from tests.support.simulation.simulated_aws import BUCKET
from tests.unit.live.ways import (
    BrokenWay,
    HastyClock,
    MovableClock,
    buffer,
    finding,
    refuse,
    replace,
)

Open = Callable[..., Any]

WAYS = [check.name for check in CHECKS if check.name.startswith("operations-")]
FILES = [check.name for check in CHECKS if check.name.startswith("files-")]
IS_LONG = os.environ.get("A2A_FAULTS") == "long"
OPERATIONS = [
    ("POST", "/message:send"),
    ("POST", "/message:stream"),
    ("GET", "/tasks"),
    ("GET", "/tasks/*"),
    ("POST", "/tasks/*:subscribe"),
    ("POST", "/tasks/*:cancel"),
    ("POST", "/tasks/*/pushNotificationConfigs"),
    ("GET", "/tasks/*/pushNotificationConfigs"),
    ("GET", "/tasks/*/pushNotificationConfigs/live"),
    ("DELETE", "/tasks/*/pushNotificationConfigs/live"),
]


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams and messages be as short as their checks can bear."""
    monkeypatch.setattr(streams, "STEPS", 4)
    monkeypatch.setattr(streams, "LATE_S", 0.7)
    monkeypatch.setattr(messages, "SENT_BYTES", 100_000)
    monkeypatch.setattr(messages, "ANSWERED_BYTES", 100_000)
    monkeypatch.setattr(messages, "FILE_BYTES", 3_000_000)
    monkeypatch.setattr(files, "UPLOADED_BYTES", 100_000_000 if IS_LONG else 10_000_000)


@pytest.mark.parametrize(
    "name",
    [
        "one-origin",
        *WAYS,
        "stream-python",
        "large-messages",
        "file",
        "forged-link",
        "upload",
        "other-uploads",
        "too-large",
        "cancel",
        "webhook",
        "encoded-colon",
    ],
)
async def test_it_passes_on_the_local_stack(subject_at: Open, name: str) -> None:
    """Each check passes on the local stack, with figures."""
    found = await finding(await subject_at(), check(name))
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    assert found.figures


@pytest.mark.timeout(600 if IS_LONG else 120)
@pytest.mark.parametrize("name", FILES)
async def test_files_are_the_same_in_each_reading(subject_at: Open, name: str) -> None:
    """1 KB to 10 MB (100 MB with A2A_FAULTS=long), in messages, artifacts, links and webhooks."""
    found = await finding(await subject_at(slack=5), check(name))
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    read = ["GetTask", "replay"] if "0.3" in name else ["GetTask", "ListTasks", "replay"]
    assert found.figures == {
        "sent": ["send", "webhook", *read],
        "streamed": ["stream", *read],
        "pushed": ["artifact", "message"],
    }


@pytest.mark.parametrize(
    ("concerns", "old", "new", "says"),
    [
        ("/tasks?", "5.bin", "4.bin", "ListTasks: the sent has [(('url', 'image/png', '4.bin'"),
        ("/message:stream", "AAECAwQ", "AAECAwU", "stream: the artifact has [(('raw'"),
        (":subscribe", '"raw":', '"text":', "replay: the artifact has [(('text'"),
        ("/message:send", "X-Amz-Signature=", "X-Amz-Signature=0", "a link: 403"),
    ],
)
async def test_a_reading_that_differs(
    subject_at: Open,
    monkeypatch: pytest.MonkeyPatch,
    concerns: str,
    old: str,
    new: str,
    says: str,
) -> None:
    """One that shows another name, byte or kind, or has a link that is dead, fails the check."""
    monkeypatch.setattr(files, "UPLOADED_BYTES", 1_000_000)
    way = BrokenWay(lambda request: concerns in str(request.url), replace(old, new))
    found = await finding(await subject_at(transport=way, slack=5), check("files-1.0-rest"))
    assert found.outcome is Outcome.FAILED
    assert says in found.says


async def test_a_card_of_another_host(subject_at: Open, address: str) -> None:
    """A card that sends clients elsewhere fails."""
    way = BrokenWay(is_card, replace(address, "https://elsewhere.test"))
    found = await finding(await subject_at(transport=way), check("one-origin"))
    assert found.outcome is Outcome.FAILED
    assert "elsewhere.test" in found.says


async def test_a_card_that_lacks_a_version(subject_at: Open) -> None:
    """A card without 0.3 fails."""
    way = BrokenWay(is_card, replace('"protocolVersion":"0.3"', '"protocolVersion":"1.0"'))
    found = await finding(await subject_at(transport=way), check("one-origin"))
    assert found.outcome is Outcome.FAILED
    assert "lacks" in found.says


@pytest.mark.parametrize(("verb", "path"), OPERATIONS)
async def test_each_operation_counts(subject_at: Open, verb: str, path: str) -> None:
    """One operation that is answered with an error fails the check of its binding."""
    way = BrokenWay(is_call(verb, path), refuse)
    found = await finding(await subject_at(transport=way), check("operations-1.0-rest"))
    assert way.broken
    assert found.outcome is Outcome.FAILED


@pytest.mark.parametrize("name", WAYS)
async def test_each_door_counts(subject_at: Open, name: str) -> None:
    """A cancel that is answered with a task at work fails the check of that binding and version."""
    states = (
        ("TASK_STATE_CANCELED", "TASK_STATE_WORKING"),
        ("TASK_STATE_CANCELLED", "TASK_STATE_WORKING"),  # of 0.3 over HTTP+JSON
        ('"canceled"', '"working"'),
    )

    async def alive(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        for old, new in states:
            response = await replace(old, new)(request, response)
        return response

    def cancels(request: httpx.Request) -> bool:
        named = (b"CancelTask", b"tasks/cancel")
        return request.url.path.endswith(":cancel") or any(n in request.content for n in named)

    way = BrokenWay(cancels, alive)
    found = await finding(await subject_at(transport=way), check(name))
    assert way.broken == 1
    assert (found.outcome, found.says) == (
        Outcome.FAILED,
        "a cancel was not answered with a canceled task",
    )


async def test_a_stream_that_buffers(subject_at: Open) -> None:
    """Events that come together at the end fail, in Python and by %3A."""
    way = BrokenWay(lambda request: "stream" in request.url.path, buffer)
    subject = await subject_at(transport=way)
    for name in ("stream-python", "encoded-colon"):
        found = await finding(subject, check(name))
        assert found.outcome is Outcome.FAILED, name
        assert "buffers" in found.says


async def test_a_stream_that_loses_a_step(subject_at: Open) -> None:
    """A step that never comes fails."""
    way = BrokenWay(lambda request: "stream" in request.url.path, replace('"2 ', '"1 '))
    found = await finding(await subject_at(transport=way), check("stream-python"))
    assert found.outcome is Outcome.FAILED
    assert "the steps that came are" in found.says


@pytest.fixture
def canned() -> Iterator[Callable[[float], str]]:
    """A server whose stream comes at once, of an agent that claims those gaps: its URL."""
    servers: list[HttpServer] = []

    def serve(gap_s: float) -> str:
        events: list[dict[str, Any]] = [{"task": {}}] + [
            {"artifactUpdate": {"artifact": {"parts": [{"text": f"{n} {n * gap_s}\n"}]}}}
            for n in range(4)
        ]
        content = "".join(f"data: {json.dumps(event)}\r\n\r\n" for event in events).encode()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            headers = [(b"content-type", b"text/event-stream")]
            status = 200 if dict(scope["headers"])[b"a2a-version"] == b"1.0" else 400
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})

        servers.append(HttpServer(app, bind(0), lifespan=False).__enter__())
        return servers[-1].url

    yield serve
    for server in servers:
        server.__exit__()


@pytest.mark.parametrize(("gap_s", "outcome"), [(0.0, Outcome.PASSED), (0.5, Outcome.FAILED)])
async def test_a_stream_in_javascript(
    subject_at: Open, canned: Callable[[float], str], gap_s: float, outcome: Outcome
) -> None:
    """Fetch sees when events come: what comes at once is right only if it happened at once."""
    found = await finding(await subject_at(endpoint=canned(gap_s)), check("stream-javascript"))
    if found.outcome is Outcome.NOT_POSSIBLE:
        pytest.skip(found.says)
    assert found.outcome is outcome, found.says


async def test_javascript_needs_node(subject_at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Node.js the check says so, and does not fail."""
    monkeypatch.setattr("tests.live.streams.shutil.which", lambda _: None)
    found = await finding(await subject_at(), check("stream-javascript"))
    assert (found.outcome, found.says) == (Outcome.NOT_POSSIBLE, "node is missing")


@pytest.mark.parametrize(
    ("concerns", "says"),
    [
        (
            lambda request: request.url.path.endswith("/message:send"),
            "the agent has read another text",
        ),
        (lambda request: request.method == "GET" and "/tasks/" in request.url.path, "in part"),
    ],
)
async def test_a_large_message_that_is_not_whole(
    subject_at: Open, concerns: Callable[[httpx.Request], bool], says: str
) -> None:
    """A digest or an artifact that is not the whole one's fails."""

    async def shorten(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        answer = json.loads(await response.aread())
        task = answer.get("task", answer)
        task["status"]["message"]["parts"][0]["text"] = "another digest"
        task["artifacts"][0]["parts"][0]["text"] = "x"
        return httpx.Response(200, json=answer, request=request)

    found = await finding(
        await subject_at(transport=BrokenWay(concerns, shorten)), check("large-messages")
    )
    assert found.outcome is Outcome.FAILED
    assert says in found.says


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"content-type": "text/html"}, "another type"),
        ({"content-disposition": "inline"}, "a browser would show"),
        ({}, "another file"),
    ],
)
async def test_a_file_that_is_not_as_it_was_made(
    subject_at: Open, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], says: str
) -> None:
    """A link fails whose file comes as another type, is shown by a browser, or is another one."""
    send = httpx.AsyncHTTPTransport.handle_async_request

    async def broken(way: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        response = await send(way, request)
        if not request.url.path.startswith(f"/{BUCKET}/"):
            return response
        headers = {**response.headers, **changed}
        content = await response.aread()
        return httpx.Response(
            200, headers=headers, content=content if changed else content[:-1] + b"!"
        )

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", broken)
    found = await finding(await subject_at(), check("file"))
    assert found.outcome is Outcome.FAILED
    assert says in found.says


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("upload", 403, "answered with 403"),
        ("upload", 200, "never came"),
        ("other-uploads", 200, "'other content': 200"),
        ("forged-link", 200, "{'unsigned': 200, 'forged': 200}"),
    ],
)
async def test_a_bucket_that_takes_no_upload_or_any(
    subject_at: Open, monkeypatch: pytest.MonkeyPatch, name: str, status: int, says: str
) -> None:
    """An upload fails that is refused, or not stored, and a link that takes or gives to anyone."""
    send = httpx.AsyncHTTPTransport.handle_async_request

    async def broken(way: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        is_of_bucket = request.url.path.startswith(f"/{BUCKET}/")
        return httpx.Response(status) if is_of_bucket else await send(way, request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", broken)
    found = await finding(await subject_at(), check(name))
    assert found.outcome is Outcome.FAILED
    assert says in found.says


def test_large_messages_are_as_large_as_they_may_be() -> None:
    """The large messages and answers are just within the server's own limits."""
    long = ordered("digest", "y" * SENT_BYTES, answer_bytes=ANSWERED_BYTES)
    task = ParseDict({"id": "1" * 36, "contextId": "1" * 36, "history": [long]}, Task())
    assert task.history[0].ByteSize() <= Settings(auth="none").max_part_bytes
    task.artifacts.add().parts.add().text = "x" * ANSWERED_BYTES
    assert 0.9 * _MAX_ANSWER_BYTES < _sent_bytes(task) < _MAX_ANSWER_BYTES - 10_000


async def test_a_message_that_is_too_large_and_taken(subject_at: Open) -> None:
    """The check of a message that is too large fails with any answer but 413."""
    way = BrokenWay(lambda request: request.url.path.endswith("/message:send"), refuse)
    found = await finding(await subject_at(transport=way), check("too-large"))
    assert found.outcome is Outcome.FAILED
    assert "500, not with 413" in found.says


async def test_a_cancel_that_takes_three_seconds(subject_at: Open) -> None:
    """A cancel is timed until its answer."""
    clock = MovableClock()

    async def late(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        clock.move(3)
        return response

    way = BrokenWay(lambda request: request.url.path.endswith(":cancel"), late)
    found = await finding(await subject_at(transport=way, clock=clock), check("cancel"))
    assert found.outcome is Outcome.FAILED
    took = re.match(r"a cancel took ([0-9.]+) s, more than 2", found.says)
    assert took is not None, found.says
    assert float(took[1]) >= 3


async def test_a_cancel_that_does_not_stay(subject_at: Open) -> None:
    """A task that is at work after its cancel fails."""
    task = {"canceled": False}

    async def alive(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.url.path.endswith(":cancel"):
            task["canceled"] = True
        elif task["canceled"]:
            return await replace("TASK_STATE_CANCELED", "TASK_STATE_WORKING")(request, response)
        return response

    way = BrokenWay(lambda request: "/tasks/" in request.url.path, alive)
    found = await finding(await subject_at(transport=way), check("cancel"))
    assert (found.outcome, found.says) == (Outcome.FAILED, "the task did not stay canceled")


def forged(notification: Notification, **headers: str) -> Notification:
    return Notification({**notification.headers, **headers}, notification.body)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda n: forged(n, **{"x-a2a-notification-token": "another"}), "token is wrong"),
        (lambda n: forged(n, **{"x-a2a-signature": "no.jwt.here"}), "does not hold"),
        (lambda n: Notification(n.headers, n.body + b" "), "of another body"),
    ],
)
async def test_a_notification_that_is_not_as_it_should_be(
    subject_at: Open,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Notification], Notification],
    says: str,
) -> None:
    """Token, signature and body are checked."""
    receiver = webhooks.receiver

    @asynccontextmanager
    async def broken(subject: Any) -> AsyncIterator[Hook]:
        async with receiver(subject) as hook:

            async def take() -> list[Notification]:
                return [fault(one) for one in await hook.take()]

            yield Hook(hook.url, take)

    monkeypatch.setattr(webhooks, "receiver", broken)
    found = await finding(await subject_at(), check("webhook"))
    assert found.outcome is Outcome.FAILED
    assert says in found.says


async def test_a_notification_that_never_comes(
    subject_at: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook that is not called within a minute fails."""

    @asynccontextmanager
    async def deaf(_: Any) -> AsyncIterator[Hook]:
        async def take() -> list[Notification]:
            return []

        yield Hook("https://example.com/hook", take)

    monkeypatch.setattr(webhooks, "receiver", deaf)
    found = await finding(await subject_at(clock=HastyClock()), check("webhook"))
    assert (found.outcome, found.says) == (
        Outcome.FAILED,
        "a notification did not come within 60 s",
    )


async def test_a_colon_that_stays_encoded(subject_at: Open) -> None:
    """A path with %3A that is not found fails."""
    way = BrokenWay(lambda request: b"%3A" in request.url.raw_path, refuse)
    found = await finding(await subject_at(transport=way), check("encoded-colon"))
    assert way.broken
    assert found.outcome is Outcome.FAILED
    assert "was answered with 500" in found.says


async def test_what_needs_aws_says_so(subject_at: Open) -> None:
    """An address alone is no stack: nothing is made up."""
    needing = [
        "timeout-kill",
        "roles-simulated",
        "role-refused",
        "fifo-early-delete",
        "renamed-header",
        "throttled",
        "busy",
        "bad-version",
        "stream-release",
        "rollout",
        "second-deploy",
        "auth-move",
        "bill",
    ]
    subject = await subject_at()
    for name in needing:
        found = await finding(subject, check(name))
        assert (found.outcome, found.says) == (
            Outcome.NOT_POSSIBLE,
            "needs a stack on AWS, and was given an address alone",
        )
    assert subject.requests == 0


def is_card(request: httpx.Request) -> bool:
    return request.url.path.endswith("agent-card.json")


def is_call(verb: str, path: str) -> Callable[[httpx.Request], bool]:
    """A call over HTTP+JSON; `*` stands for a task's id."""

    def concerns(request: httpx.Request) -> bool:
        parts = request.url.path.removeprefix("/a2a").split("/")
        wanted = path.split("/")
        return (
            request.method == verb
            and len(parts) == len(wanted)
            and all(matches(have, want) for have, want in zip(parts, wanted, strict=True))
        )

    return concerns


def matches(have: str, want: str) -> bool:
    if not want.startswith("*"):
        return have == want
    verb = want.removeprefix("*")
    return have.endswith(verb) if verb else ":" not in have
