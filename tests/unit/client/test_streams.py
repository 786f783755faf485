"""Streams that are cut, at a server with a script."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from a2a.client import A2AClientError, ClientCallContext
from a2a.types import GetTaskRequest, SubscribeToTaskRequest, TaskState
from a2a.utils.errors import A2AError, InternalError, TaskNotFoundError, UnsupportedOperationError

from a2a_serverless.client import GaveUpError, Retries, event_ids
from a2a_serverless.client.retries import Patience, status_of
from a2a_serverless.clock import SystemClock
from tests.support.messages import request
from tests.unit.client.conftest import World, collect
from tests.unit.client.scripted_server import (
    LOG,
    LOST,
    PAUSED,
    REFUSED,
    TASK,
    Fault,
    ScriptedServer,
    chunk,
    error_of,
    opened,
    status,
)

AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED
WAITING = [*LOG[:2], status(AUTH_REQUIRED), *LOG[2:]]


class TestCuts:
    @pytest.mark.long(but=2)
    @pytest.mark.parametrize("error", [LOST, None], ids=["lost", "ended"])
    async def test_at_any_byte(self, world: World, error: Exception | None) -> None:
        """A stream may be cut at any byte, as an error or as an end: each event comes once."""
        body = world.server.body(world.binding)
        first = body.index(b"\r\n\r\n", body.index(b"data: ")) + 4
        for cut in range(0, len(body), 61):
            world.server = ScriptedServer(LOG, Fault(cut=cut, error=error))
            expected = LOG if cut >= first else [world.server.as_of(len(LOG))]
            assert await world.send() == expected, cut

    @pytest.mark.parametrize("error", [LOST, None], ids=["lost", "ended"])
    async def test_after_each_event(self, world: World, error: Exception | None) -> None:
        """If every stream ends after one more event, all of them together are the log."""
        world.server.faults.extend(Fault(events=2, error=error) for _ in LOG)
        assert await world.send() == LOG
        ids = [f"{number}.0.abcdef" for number in range(2, len(LOG))]
        assert world.server.sent("last-event-id") == [None, *ids]

    async def test_after_the_last_event(self, world: World) -> None:
        """A connection that breaks after the task's end is not asked for again."""
        world.server.faults.append(Fault(events=len(LOG), error=LOST))
        assert await world.send() == LOG
        assert len(world.server.requests) == 1

    async def test_events_that_come_twice(self, world: World) -> None:
        """An event with an id that was there before is dropped; equal events are not."""
        world.server.repeats = True
        world.server.faults.extend([Fault(events=5), Fault(events=3)])
        events = await world.send()
        assert [event for event in events if event.HasField("artifact_update")] == LOG[2:6]

    async def test_an_error_in_the_stream(self, world: World) -> None:
        """A server that fails inside of a stream, and says so, is asked again."""
        _, content = error_of("INTERNAL_ERROR", is_rpc=world.binding == "JSONRPC")
        tail = f"event: error\r\ndata: {httpx.Response(200, json=content).text}\r\n\r\n"
        world.server.faults.append(Fault(events=3, tail=tail.encode()))
        assert await world.send() == LOG


class TestTrouble:
    @pytest.mark.parametrize(
        ("begin", "newline"), [("\ufeff", "\n"), ("", "\r\n"), ("", "\r")], ids=["bom", "2", "1"]
    )
    async def test_line_ends_of_others(self, world: World, begin: str, newline: str) -> None:
        """What JavaScript's and Java's servers send as it is cuts no event, wherever it stands."""
        text = "".join(f"a{odd}" for odd in "\x85\u2028\u2029")
        log = [opened(TaskState.TASK_STATE_WORKING), *(chunk(text[n:]) for n in range(6)), LOG[-1]]
        server = world.server = ScriptedServer(log, ids=False)
        body = server.body(world.binding).decode().replace("\r\n", newline)
        server.faults.append(Fault(events=0, tail=(begin + body).encode()))
        assert await world.send() == log

    @pytest.mark.parametrize("data", ["{", "[1]", '{"result": {"task": 1}, "task": 1}'])
    async def test_an_event_that_is_none(self, world: World, data: str) -> None:
        """It is no error of the server's protocol, and ends the call at once."""
        world.server.faults.append(Fault(events=2, tail=f"data: {data}\n\n".encode()))
        with pytest.raises(A2AClientError) as failed:
            await world.send()
        assert (len(world.server.requests), status_of(failed.value)) == (1, None)

    @pytest.mark.parametrize(
        ("options", "waits_s"),
        [
            ({}, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20, 20]),
            ({"longest_wait_s": 1}, [0.2, 0.4, 0.8, 1, 1, 1, 1, 1, 1]),
        ],
    )
    async def test_a_cap(self, world: World, options: dict[str, Any], waits_s: list[float]) -> None:
        """Streams that end after their first event are asked for less and less often."""
        world.server.faults.extend([Fault(events=1)] * 9)
        assert await world.send(draw=lambda: 1.0, **options) == LOG
        assert world.clock.monotonic() == pytest.approx(sum(waits_s))

    @pytest.mark.parametrize("value", ["7", "Tue, 14 Nov 2023 22:13:27 GMT"])
    async def test_retry_after(self, world: World, value: str) -> None:
        """429 is asked again after the time that it names, unless it is too long to wait."""
        world.server.faults.append(Fault(status=429, headers={"Retry-After": value}))
        assert await world.send() == LOG
        waited_s = world.clock.monotonic()
        assert 7 < waited_s < 7.5
        world.server.faults.append(Fault(status=429, headers={"Retry-After": "3600"}))
        with pytest.raises(GaveUpError):
            await world.send()
        assert world.clock.monotonic() == waited_s

    async def test_giving_up(self, world: World) -> None:
        """Without progress the call ends with what is needed to go on, and with the last error."""
        world.server.faults.extend([Fault(events=3, error=LOST), *[Fault(error=REFUSED)] * 99])
        events = world.client(give_up_after_s=60).send_message(request())
        assert [await anext(events) for _ in range(3)] == LOG[:3]
        with pytest.raises(GaveUpError, match=r"Subscribe to task task-1 .* 3\.0\.abc") as caught:
            await anext(events)
        assert (caught.value.task_id, caught.value.last_event_id) == (TASK, "3.0.abcdef")
        assert isinstance(caught.value.__cause__, A2AClientError)
        assert world.clock.monotonic() == pytest.approx(60)

    async def test_giving_up_after_streams_that_end_early(self, world: World) -> None:
        """The error says so, as there is no failure to name."""
        world.server.faults.extend([Fault(events=3), *[Fault(events=1)] * 99])
        with pytest.raises(GaveUpError, match="new for 60 s, and the last stream ended early"):
            await world.send(give_up_after_s=60)

    async def test_a_silent_agent(self, world: World) -> None:
        """Streams that stay open without news are no failure, however many there are."""
        world.server.faults.extend([Fault(events=3), *[Fault(events=1)] * 50])
        world.server.at_end = lambda: world.clock.advance(25)
        assert await world.send(give_up_after_s=60) == LOG
        assert world.clock.monotonic() > 1000

    async def test_a_time_limit(self, world: World) -> None:
        """A limit of the whole call ends it also while a stream is open."""
        world.server.faults.append(Fault(events=3, hangs=True))
        with pytest.raises(GaveUpError, match=r"No end within 0\.05 s"):
            await world.send(time_limit_s=0.05, clock=SystemClock())

    async def test_a_timeout_that_is_not_the_limit(self, world: World) -> None:
        """One that the transport raises comes through as it is."""
        world.server.faults.append(Fault(error=TimeoutError("of the transport")))
        with pytest.raises(TimeoutError, match="of the transport"):
            await world.send(time_limit_s=100)

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            *((Fault(status=code), A2AError) for code in (401, 404, 413)),
            (Fault(reason="TASK_NOT_FOUND"), TaskNotFoundError),
            (Fault(error=httpx.UnsupportedProtocol("ftp")), A2AError),
        ],
    )
    async def test_final_errors(self, world: World, fault: Fault, error: type[A2AError]) -> None:
        """An error that another try cannot help is raised at once, also in a continued stream."""
        world.server.faults.extend([Fault(events=2), fault])
        with pytest.raises(error) as caught:
            await world.send()
        assert not isinstance(caught.value, GaveUpError)
        assert len(world.server.requests) == 2

    async def test_internal_errors(self, world: World) -> None:
        """A server's own failure is tried again a few times, and is then the call's."""
        failed = [Fault(reason="INTERNAL_ERROR")]
        world.server.faults.extend(failed * 3)
        assert await world.send() == LOG
        world.server.faults.extend(failed * 4)
        with pytest.raises(InternalError):
            await world.send()


class TestEnds:
    async def test_a_pause_ends_the_stream_of_a_message(self, world: World) -> None:
        """A pause ends a message's stream, also one that was cut and continued before."""
        world.server = ScriptedServer(PAUSED)
        world.server.holds_subscriptions = True
        for events in range(1, len(PAUSED) + 1):
            world.server.faults.append(Fault(events=events, error=LOST))
            assert await world.send() == PAUSED

    async def test_credentials_are_waited_for(self, world: World) -> None:
        """At AUTH_REQUIRED a lost connection is continued, and a stream's end is the end."""
        world.server = ScriptedServer(WAITING, Fault(events=3, error=LOST))
        assert await world.send() == WAITING
        world.server.faults.append(Fault(events=3))
        assert await world.send() == WAITING[:3]

    async def test_a_stream_that_ends_early(self, world: World) -> None:
        """A stream that ends with the field `retry`, or without any event, has not ended."""
        early = Fault(events=3, tail=b": Subscribe again.\r\nretry: 200\r\n\r\n")
        world.server = ScriptedServer(WAITING, early, Fault(events=0))
        assert await world.send() == WAITING
        assert world.server.sent("prefer") == [None, "until=turn", "until=turn"]

    async def test_a_time_to_come_back_that_comes_first(self, world: World) -> None:
        """The field `retry` before an event says nothing of the stream's end."""
        world.server = ScriptedServer([*LOG[:2], status(AUTH_REQUIRED)])
        whole = world.server.body(world.binding)
        world.server.faults.append(Fault(events=0, tail=b"retry: 3000\r\n\r\n" + whole))
        assert await world.send() == world.server.log
        assert len(world.server.requests) == 1

    async def test_a_stream_that_is_refused_at_a_pause(self, world: World) -> None:
        """A server that streams no waiting task has ended the turn: its Task is the last event."""
        refused = [Fault(events=2, error=LOST), Fault(reason="UNSUPPORTED_OPERATION")]
        world.server = ScriptedServer([*LOG[:3], status(AUTH_REQUIRED)], *refused)
        assert await world.send() == [*LOG[:2], world.server.as_of(4)]
        world.server.now = 2
        world.server.faults.extend(refused)
        with pytest.raises(UnsupportedOperationError):
            await world.subscribe()

    async def test_a_pause_that_was_shown_before_is_not_shown_again(self, world: World) -> None:
        """The Task that a refused stream leads to is no news where the caller has it."""
        refused = [Fault(events=1, error=LOST), Fault(reason="UNSUPPORTED_OPERATION")]
        world.server = ScriptedServer([opened(AUTH_REQUIRED)], *refused)
        assert await world.send() == world.server.log

    async def test_a_first_task_may_show_the_pause_before(self, world: World) -> None:
        """A follow-up whose stream is cut after the Task of the last pause goes on."""
        log = [opened(TaskState.TASK_STATE_INPUT_REQUIRED), *LOG[1:]]
        world.server = ScriptedServer(log, Fault(events=1, error=LOST))
        answer = request()
        answer.message.task_id = TASK
        assert await collect(world.client().send_message(answer)) == log

    async def test_a_lost_answer_to_a_question(self, world: World) -> None:
        """The first Task of a message that opens a task shows the turn's own pause."""
        lost = (Fault(events=number, error=LOST) for number in (0, 1))
        world.server = ScriptedServer(PAUSED, *lost)
        world.server.resumes, world.server.holds_subscriptions = False, True
        assert await world.send() == [world.server.as_of(len(PAUSED))]

    async def test_leaving_closes_the_connection(self, world: World) -> None:
        """A caller that leaves the iterator leaves no open response behind."""
        world.server.faults.append(Fault(hangs=True))
        events = world.client().send_message(request())
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        assert world.server.closed == 1


class TestBounds:
    """A hostile server's stream ends with a sentence, and holds little memory until then."""

    @pytest.fixture(autouse=True)
    def shorter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An event is too long sooner."""
        monkeypatch.setattr(event_ids, "_LONGEST_EVENT", 1_000_000)

    async def answered(self, world: World, begin: bytes, filling: bytes) -> int:
        """Answer a message with an endless line; the bytes that were read of it."""
        line = Endless(begin, filling)

        async def endless(response: httpx.Response) -> None:
            response.stream = line

        http = world.http()
        client = world.client(http=http)
        http.event_hooks["response"].insert(0, endless)
        with pytest.raises(A2AClientError, match=r"more than [0-9,]+ characters.* Call get_task"):
            await collect(client.send_message(request()))
        assert len(world.server.requests) == 1
        return line.read

    async def test_a_compressed_stream(self, world: World) -> None:
        """It is refused at once, by a sentence with its encoding: its ids cannot be read."""
        world.server.faults.append(Fault(headers={"content-encoding": "gzip"}))
        with pytest.raises(A2AClientError, match="has the Content-Encoding 'gzip', in which"):
            await world.send()
        assert len(world.server.requests) == 1

    @pytest.mark.parametrize(
        ("begin", "filling"),
        [(b"data: ", b"x" * 10_000), (b": ", b"x" * 10_000), (b"", b"data: x\n" * 1000)],
    )
    async def test_an_endless_line(self, world: World, begin: bytes, filling: bytes) -> None:
        """A line without an end is read up to the limit of an event, as is one of many lines."""
        assert await self.answered(world, begin, filling) < 1_020_000

    @pytest.mark.parametrize(
        ("status_code", "streaming", "is_packed"),
        [(200, True, False), (500, True, True), (200, False, True), (500, False, False)],
    )
    async def test_an_endless_answer(
        self, world: World, status_code: int, *, streaming: bool, is_packed: bool
    ) -> None:
        """What is no stream is read up to the same limit, also of what unpacks to more."""
        filling = b"x" * 10_000
        headers = {"content-type": "application/json"}
        bodies = [Endless(b'{"result": "', filling), Endless(b"{", filling)]
        if is_packed:
            bodies = [Endless(gzip.compress(b"{" + filling * 200), b"")]
            headers["content-encoding"] = "gzip"
        answers = [httpx.Response(status_code, headers=headers, stream=body) for body in bodies]
        http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answers.pop(0)))
        client = world.client(http=http, streaming=streaming)
        with pytest.raises(A2AClientError, match=r"more than 1,000,000 bytes.* Call get_task"):
            await collect(client.send_message(request()))
        assert (len(answers), bodies[0].read < 1_020_000) == (len(bodies) - 1, True)
        if answers:
            with pytest.raises(A2AClientError, match="more than 1,000,000 bytes"):
                await client.get_task(GetTaskRequest(id=TASK))

    async def test_an_id_of_10_mb(self, world: World) -> None:
        """An id that no request could name ends the stream before it is read."""
        assert await self.answered(world, b"id: ", b"x" * 10_000) < 100_000

    @pytest.mark.parametrize("name", ["Last-Event-ID", "Idempotency-Key"])
    async def test_an_id_of_10_mb_of_the_callers(self, world: World, name: str) -> None:
        """An id of the caller's that is too long for a header is refused before it is sent."""
        context = ClientCallContext(service_parameters={name: "x" * 10_000_000})
        events = world.client().send_message(request(), context=context)
        if name == "Last-Event-ID":
            events = world.client().subscribe(SubscribeToTaskRequest(id=TASK), context=context)
        with pytest.raises(ValueError, match=f"{name} has 10,000,000 characters"):
            await collect(events)
        assert not world.server.requests

    @pytest.mark.parametrize("event_id", ["", " 3", "\u6f22", "3\x00"])
    async def test_an_id_that_is_no_header(self, world: World, event_id: str) -> None:
        """An id that cannot be sent back counts as none: the Task replaces what came before."""
        world.server.id_of = lambda *_: event_id  # type: ignore[method-assign]
        world.server.resumes = False
        world.server.now = 5
        world.server.faults.append(Fault(events=3, error=LOST))
        assert await world.send() == [*LOG[:3], world.server.as_of(5), *LOG[5:]]
        assert world.server.sent("last-event-id") == [None, None]

    async def test_an_error_whose_causes_are_a_circle(self) -> None:
        """The causes of an error are looked at once each."""
        one, other = ValueError("one"), ValueError("other")
        one.__cause__, other.__cause__ = other, one
        with pytest.raises(ValueError, match="one"):
            await Patience(Retries()).before_next_try(one)


@dataclass
class Endless(httpx.AsyncByteStream):
    """A body that goes on until it is closed, or 200 MB have been read."""

    begin: bytes
    filling: bytes
    read: int = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.begin
        while self.read < 200_000_000:
            self.read += len(self.filling)
            yield self.filling


class TestWithoutIds:
    async def test_the_same_task_is_not_shown_again(self, world: World) -> None:
        """Streams that open with the same Task show it once."""
        world.server = ScriptedServer(LOG, Fault(events=3), *[Fault(events=1)] * 3, ids=False)
        world.server.now = 4
        assert await world.send() == [*LOG[:3], world.server.as_of(4), *LOG[4:]]

    async def test_a_task_that_has_ended_is_read(self, world: World) -> None:
        """If the task has ended and cannot be subscribed to, the Task as it ended comes last."""
        world.server = ScriptedServer(LOG, Fault(events=3, error=LOST), ids=False)
        assert await world.send() == [*LOG[:3], world.server.as_of(len(LOG))]
        assert world.server.methods()[1:] == ["SubscribeToTask", "GetTask"]

    async def test_a_server_without_both(self, world: World) -> None:
        """Without ids and without a Task to begin with, a cut stream is refused: there is a gap."""
        world.server = ScriptedServer(LOG, Fault(events=1, error=LOST), ids=False)
        world.server.as_of = lambda count: chunk(str(count))  # type: ignore[method-assign]
        with pytest.raises(A2AClientError, match="cannot continue"):
            await world.send()


class TestOfOthersIds:
    async def test_a_stream_that_opens_with_the_event_asked_for(self, world: World) -> None:
        """It goes on after that event; another event under the same id leaves a gap."""
        world.server.faults.append(Fault(events=3, error=LOST))
        world.server.as_of = lambda count: LOG[count - 1]  # type: ignore[method-assign]
        assert await world.send() == LOG
        world.server.faults.append(Fault(events=3, error=LOST))
        world.server.as_of = lambda count: chunk(str(count))  # type: ignore[method-assign]
        with pytest.raises(A2AClientError, match="cannot continue"):
            await world.send()

    async def test_an_id_of_several_events(self, world: World) -> None:
        """Events that share an id are none that come twice."""
        world.server.id_of = lambda *_: "7"  # type: ignore[method-assign]
        assert await world.send() == LOG


class TestOfTheCallersOwn:
    async def test_an_id_to_continue_after(self, world: World) -> None:
        """The state of a call has the last id; a later subscription with it goes on from there."""
        context = ClientCallContext()
        events = world.client().send_message(request(), context=context)
        seen = [await anext(events) for _ in range(3)]
        await events.aclose()  # type: ignore[attr-defined]
        last = context.state["last_event_id"]
        assert last == "3.0.abcdef"

        context = ClientCallContext(service_parameters={"last-event-id": last})
        world.server.faults.append(Fault(events=2))
        rest = world.client().subscribe(SubscribeToTaskRequest(id=TASK), context=context)
        assert [*seen, *(await collect(rest))] == [*LOG[:3], world.server.as_of(3), *LOG[3:]]

    async def test_calls_at_once(self, world: World) -> None:
        """Calls of one client that run at the same time do not take each other's ids."""
        client = world.client()
        world.server.faults.extend([Fault(events=3)] * 4)
        calls = (collect(client.send_message(request())) for _ in range(4))
        assert await asyncio.gather(*calls) == [LOG] * 4
