"""Calls of other agents: what comes back, what a kill repeats, what is canceled and refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, Part
from google.protobuf.json_format import MessageToJson
from starlette.applications import Starlette
from starlette.types import ASGIApp

from a2a_serverless.steps import call_agent
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.stores import DynamoDBTaskEventStream, DynamoDBTaskStore
from a2a_serverless.stores.layout import memory_table
from a2a_serverless.tasks.entries import copied
from a2a_serverless.worker import (
    Remote,
    TaskContext,
    WaitTimeoutError,
    Worker,
    calls,
    remotes,
)
from a2a_serverless.worker.calls import DEPTH
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless_tools.testing import AgentBench, Outcome, Run, file_part, step
from tests.conformance.sides import CARD, durable, stock
from tests.support.peers import Clerk, Fails, Peer


@asynccontextmanager
async def stored(executor: AgentExecutor) -> AsyncIterator[ASGIApp]:
    """The SDK's own handler with a versioned store, as several of its processes share one."""
    table = memory_table()
    tasks, stream = DynamoDBTaskStore(table), DynamoDBTaskEventStream(table)
    handler = DefaultRequestHandler(executor, tasks, CARD, event_stream=stream)
    try:
        yield Starlette(routes=create_jsonrpc_routes(handler, "/"))
    finally:
        await handler.aclose()


SIDES = {"stock": stock, "stored": stored, "ours": durable}


@pytest.fixture(params=["stock"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A clerk behind the SDK's server; `each_side` adds that with a store, and ours."""
    with Peer(SIDES[request.param], CARD) as peer:
        yield peer


each_side = pytest.mark.parametrize("peer", SIDES, indirect=True)


class Buyer(Worker):
    """Runs a function of its context, and knows one other agent."""

    def __init__(self, handle: Callable[[TaskContext], Awaitable[None]], books: Remote) -> None:
        self._handle = handle
        self.agents = {"books": books}

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


def bench(peer: Peer, handle: Callable[[TaskContext], Awaitable[None]], **more: Any) -> AgentBench:
    return AgentBench(Buyer(handle, peer.remote()), **more)


async def buys(ctx: TaskContext) -> None:
    """Says to the other agent what the client says, and completes with what comes back."""
    reply = await ctx.call_agent("books", ctx.user_text)
    state = reply.state.upper()  # as logs have the word of our own task's state
    await ctx.complete_json([state, reply.text, reply.question])


def outcome(run: Run) -> list[str]:
    state, *texts = run.artifacts["final-answer"].data[0]
    return [state.lower(), *texts]


COMES_TO = {
    "write": ["completed", "did write", ""],
    "message": ["completed", "only this", ""],
    "fail": ["failed", "no paper", ""],
    "reject": ["rejected", "not here", ""],
    "ask": ["input_required", "hard or soft?", "hard or soft?"],
}


@each_side
def test_what_the_other_task_comes_to_is_data(peer: Peer) -> None:
    """Result, message, failure, rejection and question come back without an exception."""
    with bench(peer, buys) as tested:
        assert {said: outcome(tested.send(said)) for said in COMES_TO} == COMES_TO
    assert len(peer.clerk.said) == len(COMES_TO)


async def orders(ctx: TaskContext) -> None:
    """Says what the client says, answers the question, and works on behind it."""
    reply = await ctx.call_agent("books", ctx.user_text)
    answered = await reply.answer("soft")
    await ctx.step("pay", str.upper, answered.text)
    await ctx.complete(answered.text)


RECORDS = [
    step("ctx.call_agent.message books"),
    step("ctx.call_agent.sent books"),
    step("ctx.call_agent.message books", number=2),
    step("ctx.call_agent.sent books", number=2),
]


@pytest.mark.parametrize("kill_after", RECORDS, ids=str)
def test_a_killed_caller_opens_one_task_and_sends_each_message_once(
    peer: Peer, kill_after: Any
) -> None:
    """Killed behind any record, the caller goes on with the task that it has opened."""
    with bench(peer, orders) as tested:
        run = tested.send("ask", kill_after=kill_after)
        assert (run.artifacts["final-answer"].text, run.attempts) == ("did soft", 2)
    assert [text for _, text in peer.clerk.said] == ["ask", "soft"]
    assert len(peer.clerk.tasks) == 1


@each_side
@pytest.mark.parametrize("number", [0, 1])
def test_a_message_whose_answer_was_lost_is_found(peer: Peer, number: int) -> None:
    """A message that opens a task, and one that answers, count once though no answer came."""
    lost: list[bytes] = []

    def fails(request: httpx.Request, moment: str) -> httpx.Response | None:
        said = b"SendMessage" in request.content
        if said and moment == "after" and request.content not in lost:
            lost.append(request.content)
            if len(lost) == number + 1:
                return httpx.Response(504)
        return None

    peer.fails = fails
    with bench(peer, orders) as tested:
        assert tested.send("ask").artifacts["final-answer"].text == "did soft"
    assert [text for _, text in peer.clerk.said] == ["ask", "soft"]


@pytest.mark.parametrize(
    ("peer", "said", "moment"),
    [
        ("stock", b'"ask"', "before"),
        ("stored", b'"ask"', "after"),
        ("ours", b'"ask"', "after"),
        ("stock", b'"soft"', "after"),
    ],
    indirect=["peer"],
)
def test_a_caller_that_is_killed_while_it_sends_opens_one_task(
    peer: Peer, said: bytes, moment: str
) -> None:
    """It dies before the other agent has the message, or before it has the other's answer."""
    killed: list[bool] = []

    def fails(request: httpx.Request, now: str) -> httpx.Response | None:
        if not killed and now == moment and said in request.content:
            killed.append(True)
            process = tested._process
            process._loop.call_soon_threadsafe(process._kill)
            return httpx.Response(503)
        return None

    peer.fails = fails
    with bench(peer, orders) as tested:
        run = tested.send("ask")
        assert (run.artifacts["final-answer"].text, run.attempts) == ("did soft", 2)
    assert [text for _, text in peer.clerk.said] == ["ask", "soft"]


def test_a_long_call_holds_no_process(peer: Peer) -> None:
    """After ten seconds the turn leaves its process; it goes on when the other task has ended."""

    def handle_later() -> None:
        peer.run(_set(peer.clerk))

    async def waits(ctx: TaskContext) -> None:
        starts.append(ctx.task_id)
        if len(starts) == 3:
            handle_later()
        await buys(ctx)

    starts: list[str] = []
    with bench(peer, waits) as tested:
        run = tested.send("wait")
        assert outcome(run) == ["completed", "waited", ""]
        assert tested.clock.monotonic() > 120
    assert len(peer.clerk.said) == 1


async def _set(clerk: Clerk) -> None:
    clerk.go_on.set()


# -- cancel and time-out ---------------------------------------------------------------------------


def test_a_cancel_cancels_the_other_task_while_the_caller_waits(peer: Peer) -> None:
    """The code is in the call: it is canceled here and there."""

    async def waits(ctx: TaskContext) -> None:
        await ctx.gather(buys(ctx), _cancels(ctx))

    async def _cancels(ctx: TaskContext) -> None:
        await ctx.sleep(3)
        tested.cancel_running()

    with bench(peer, waits) as tested:
        assert tested.send("wait").state == "canceled"
    assert peer.states == ["CANCELED"]


@each_side
def test_a_cancel_cancels_the_other_task_while_nobody_runs(peer: Peer) -> None:
    """The caller was killed, sleeps, or asks its own client: the records say what to cancel."""

    async def asks(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", ctx.user_text)
        await reply.answer((await ctx.ask(reply.question)).text)

    with bench(peer, asks) as tested:
        assert tested.cancel(tested.send("ask")).state == "canceled"
    with bench(peer, buys) as tested:
        sent = step("ctx.call_agent.sent books")
        assert tested.send("wait", cancel_after=sent).state == "canceled"
    assert peer.states == ["CANCELED", "CANCELED"]


@pytest.mark.parametrize("died", ["before", "after"])
def test_a_cancel_finds_a_message_whose_record_is_missing(peer: Peer, died: str) -> None:
    """Killed between sending and its record: the task is found, or opened, and then canceled."""

    def fails(request: httpx.Request, moment: str) -> httpx.Response | None:
        if b"SendMessage" in request.content and moment == died and not asked:
            asked.append(True)
            tested.cancel_running()
            return httpx.Response(504)
        return None

    asked: list[bool] = []
    peer.fails = fails
    with bench(peer, buys) as tested:
        assert tested.send("wait").state == "canceled"
    assert peer.states == ["CANCELED"]


class Plain(AgentExecutor):
    """Calls another agent by its URL in its own code, and does nothing at a cancel but fail."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        reply = await call_agent("http://test", context.get_user_input())
        await TaskContext(context, event_queue).complete(reply.text)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise RuntimeError("nothing to cancel")


def test_a_cancel_of_an_executor_cancels_what_it_has_called(
    peer: Peer, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The official interface's own agent needs no code for that, and its error changes nothing."""
    monkeypatch.setattr(
        Remote, "connected", lambda _, *named: remotes.connected(peer.remote(), *named)
    )
    with AgentBench(Plain) as tested:
        sent = step("ctx.call_agent.sent http://test/")
        assert tested.send("wait", cancel_after=sent).state == "canceled"
    assert peer.states == ["CANCELED"]
    assert "nothing to cancel" in caplog.text


def test_what_an_agent_cancels_itself_is_not_cut_off(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The other agent hangs: the agent's own cancel runs beside it, and the log says what does."""

    class Cancels(Buyer):
        async def cancel(self, ctx: TaskContext) -> None:
            released.append(ctx.task_id)

    class Hangs(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if b"CancelTask" in request.content:
                await asyncio.Event().wait()
            return await peer.handle_async_request(request)

    released: list[str] = []
    agent = Cancels(buys, Remote(peer.url, transport=Hangs()))
    with AgentBench(agent, cancel_timeout_s=0.3) as tested:
        sent = step("ctx.call_agent.sent books")
        assert tested.send("wait", cancel_after=sent).state == "canceled"
    assert len(released) == 1
    (told,) = [each for each in caplog.records if action(each) == "call_not_canceled"]
    assert "The agent books was not asked (CancelledError)" in told.getMessage()


def test_a_cancel_says_that_a_long_url_is_not_in_the_records(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """In another process the address of a Remote is not known, and none that is cut is called."""
    long = f"http://test/{'x' * 100}"

    async def asks(ctx: TaskContext) -> None:
        reply = await ctx.call_agent(Remote(long, transport=peer), "ask")
        await ctx.ask(reply.question)

    def fails(request: httpx.Request, _: str) -> httpx.Response | None:
        text = MessageToJson(peer.card)
        return httpx.Response(200, text=text) if request.method == "GET" else None

    peer.fails = fails
    with bench(peer, asks) as tested:
        run = tested.send("go")
        before = len(peer.requests)
        assert tested.cancel(run).state == "canceled"
        assert len(peer.requests) == before
    (told,) = [each for each in caplog.records if action(each) == "call_not_canceled"]
    assert "has only the beginning of its URL" in told.getMessage()


def action(record: logging.LogRecord) -> str:
    return str(getattr(record, "action", ""))


def test_a_cancel_has_the_credentials_of_each_call(peer: Peer) -> None:
    """Of two Remotes of one URL each cancels what it has opened."""

    async def both(ctx: TaskContext) -> None:
        ann, bob = (peer.remote(headers={"X-API-Key": key}) for key in ("ann", "bob"))
        await ctx.call_agent(ann, "ask", key="1")
        await ctx.call_agent(bob, "ask", key="2")
        tested.cancel_running()
        await ctx.sleep(30)

    with bench(peer, both) as tested:
        assert tested.send("go").state == "canceled"
    canceled = [each for each in peer.requests if b"CancelTask" in each.content]
    assert {each.headers["x-api-key"] for each in canceled} == {"ann", "bob"}


def test_a_cancel_guesses_no_credentials(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """Killed behind two Remotes of one URL, the code has come to neither call that is recorded."""

    async def both(ctx: TaskContext) -> None:
        keys = ("ann", "bob", "eve")
        ann, bob, eve = (peer.remote(headers={"X-API-Key": key}) for key in keys)
        starts.append(ctx.task_id)
        if len(starts) == 2:
            await ctx.call_agent(bob, "ask", key="2")
            await ctx.call_agent(eve, "ask", key="3")
            tested.cancel_running()
            await ctx.sleep(30)
        await ctx.call_agent(ann, "ask", key="1")
        tested._process._kill()
        await asyncio.get_running_loop().create_future()

    starts: list[str] = []
    with bench(peer, both) as tested:
        assert tested.send("go").state == "canceled"
    (told,) = [each for each in caplog.records if action(each) == "call_not_canceled"]
    assert "Which Remote of http://test/ has called it" in told.getMessage()


def test_a_caller_that_is_killed_at_its_time_out_is_late_all_the_same(peer: Peer) -> None:
    """It dies behind the cancel of the other task and before its record: that stays a time-out."""

    def fails(request: httpx.Request, now: str) -> httpx.Response | None:
        if b"CancelTask" in request.content and now == "after" and not killed:
            killed.append(True)
            process = tested._process
            process._loop.call_soon_threadsafe(process._kill)
            return httpx.Response(503)
        return None

    async def waits(ctx: TaskContext) -> None:
        with pytest.raises(WaitTimeoutError):
            await ctx.call_agent("books", "wait", timeout_s=300)
        await ctx.complete("late")

    killed: list[bool] = []
    peer.fails = fails
    with bench(peer, waits) as tested:
        assert tested.send("go").artifacts["final-answer"].text == "late"
    assert (killed, peer.states) == ([True], ["CANCELED"])


def test_a_time_out_raises_and_cancels(peer: Peer) -> None:
    """The other task does not end in time: it is canceled, and that stays so."""

    async def waits(ctx: TaskContext) -> None:
        try:
            await ctx.call_agent("books", "wait", timeout_s=300)
        except WaitTimeoutError as error:
            await ctx.step("note", notes.append, str(error))
            await ctx.sleep(120)
            await ctx.complete("late")

    notes: list[str] = []
    with bench(peer, waits) as tested:
        run = tested.send("go")
        assert run.artifacts["final-answer"].text == "late"
        assert 300 <= tested.clock.monotonic() < 600
    assert peer.states == ["CANCELED"]
    assert "The agent books has not answered in time" in notes[0]


# -- agents that cannot be called ------------------------------------------------------------------


def answers(status: int, **headers: str) -> Fails:
    """Answers each message so, and the card as the server does."""
    return lambda request, _: (
        httpx.Response(status, headers=headers) if request.method == "POST" else None
    )


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (answers(401), "The agent books has refused the message: HTTP status 401."),
        (answers(307, location="http://other/"), "a redirect, which is not followed"),
        (lambda *_: httpx.Response(404), "The agent books cannot be called by its card: HTTP"),
        (
            lambda *_: httpx.Response(200, text="<p>"),
            "cannot be called by its card: Failed to parse JSON",
        ),
    ],
    ids=["credentials", "redirect", "no card", "card of a page"],
)
def test_an_agent_that_cannot_be_called_has_failed(fails: Any, why: str) -> None:
    """The reply says why, and nothing is tried again."""
    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        peer.fails = fails
        run = tested.send("write")
        state, text, _ = outcome(run)
        assert state == "failed"
        assert why in text
        assert run.attempts == 1


def result(content: str, media_type: str = "application/json") -> Fails:
    """Answers each message with a JSON-RPC result of this content."""
    body = f'{{"jsonrpc": "2.0", "id": "1", "result": {content}}}'
    if media_type == "text/event-stream":
        body = f"data: {body}\n\n"
    return lambda request, _: (
        httpx.Response(200, text=body, headers={"content-type": media_type})
        if request.method == "POST"
        else None
    )


TOO_LARGE = '{"message": {"parts": [{"data": {"price": 1e400}}]}}'
DONE = (
    '{"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "metadata": {"n": 1e400}}}'
)


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (result("null"), "has refused the message: "),
        (result("7"), "has refused the message: "),
        (result("{}"), "has refused the message: ValueError"),
        (result("[]"), "has refused the message: ValueError"),
        (result('{"task": {}}'), "has refused the message: Response has a task without an id"),
        (result(TOO_LARGE), "what is no JSON"),
        (result(DONE), "what is no JSON"),
        (result('{"task": {"id": "t"}, "message": 1}'), "has refused the message: "),
    ],
)
def test_a_damaged_answer_has_failed(fails: Fails, why: str) -> None:
    """What is neither a task nor a message, or no JSON, is told by a sentence."""
    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        peer.fails = fails
        state, text, _ = outcome(tested.send("write"))
        assert state == "failed"
        assert why in text
        assert text.endswith(".")


def test_a_task_that_is_answered_with_none_has_failed() -> None:
    """The other agent has a task, and shows an empty one when it is looked at."""

    def fails(request: httpx.Request, moment: str) -> httpx.Response | None:
        is_look = moment == "before" and b"GetTask" in request.content
        return result("{}")(request, moment) if is_look else None

    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        peer.fails = fails
        assert "another task, or with none" in outcome(tested.send("wait"))[1]


def card(**fields: Any) -> AgentCard:
    """The card with other fields; `url` and `version` are those of its interface."""
    made = AgentCard()
    made.CopyFrom(CARD)
    made.supported_interfaces[0].url = fields.get("url", "http://test/")
    made.supported_interfaces[0].protocol_version = fields.get("version", "1.0")
    return made


@pytest.mark.parametrize(
    ("claimed", "why"),
    [
        (card(version="0.3"), "has refused the message"),
        (card(url="http://test/elsewhere"), "HTTP status 404"),
        (card(url="none"), "cannot be called"),
    ],
    ids=["version", "address", "no address"],
)
def test_a_card_that_lies_ends_with_a_sentence(claimed: AgentCard, why: str) -> None:
    """A version or an address that is not the agent's is told."""
    with Peer(stock, claimed) as peer, bench(peer, buys) as tested:
        state, text, _ = outcome(tested.send("write"))
        assert state == "failed"
        assert why in text


def test_an_agent_of_0_3_is_called(peer_0_3: Peer) -> None:
    """The SDK's client speaks the version that the card names; a question is answered, too."""
    with bench(peer_0_3, orders) as tested:
        assert tested.send("ask").artifacts["final-answer"].text == "did soft"
    assert len(peer_0_3.clerk.tasks) == 1


@pytest.fixture
def peer_0_3() -> Iterator[Peer]:
    """A clerk behind our server, whose card names 0.3 alone."""
    with Peer(durable, card(version="0.3")) as peer:
        yield peer


def test_credentials_go_to_the_agents_own_host_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A card that names another host does not get them; they are neither logged nor stored."""
    caplog.set_level(logging.DEBUG)
    with Peer(stock, card(url="http://thief/")) as peer:
        remote = peer.remote(headers={"X-API-Key": "secret"})
        with AgentBench(Buyer(buys, remote)) as tested:
            assert "addresses of other hosts alone" in outcome(tested.send("write"))[1]
        assert {request.url.host for request in peer.requests} == {"test"}
        peer.card = CARD
        with AgentBench(Buyer(buys, remote)) as tested:
            assert outcome(tested.send("write"))[0] == "completed"
            table = tested._backends.storage.table
            assert isinstance(table, MemoryTable)
            assert "secret" not in repr(table.__dict__)
        assert peer.requests[-1].headers["x-api-key"] == "secret"
    assert "secret" not in caplog.text + repr(remote)


@pytest.mark.parametrize("error", [KeyError("s3cret"), ValueError("s3cret")], ids=repr)
def test_what_the_authors_own_code_raises_is_said_by_its_type(error: Exception) -> None:
    """Its text may be a token: neither the reply nor the record has it."""

    class Bad(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
            if b"SendMessage" in request.content:
                raise error
            yield request

    with Peer(stock, CARD) as peer, AgentBench(Buyer(buys, peer.remote(auth=Bad()))) as tested:
        _, text, _ = outcome(tested.send("write"))
    assert text == f"The agent books has refused the message: {type(error).__name__}."


def test_an_answer_that_is_too_large_has_failed() -> None:
    """Of an answer of 20 MB as much is read as may be, and a sentence says so."""
    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        state, text, _ = outcome(tested.send("large"))
        assert state == "failed"
        assert "more than 16,000,000 bytes" in text


def test_an_agent_that_is_away_is_called_until_it_is_back() -> None:
    """For an hour there is no answer: the message is sent once, and no attempt is used up."""

    def fails(request: httpx.Request, _: str) -> httpx.Response | None:
        return httpx.Response(503) if tested.clock.monotonic() < 3600 else None

    with Peer(stock, CARD) as peer, bench(peer, buys, max_attempts=1) as tested:
        peer.fails = fails
        assert outcome(tested.send("write")) == ["completed", "did write", ""]
        assert len(peer.requests) < 60
    assert len(peer.clerk.said) == 1


def test_an_agent_that_always_fails_inside_counts_as_failed() -> None:
    """After some internal errors it is not tried on for a day."""

    def fails(request: httpx.Request, _: str) -> httpx.Response | None:
        return httpx.Response(500) if request.method == "POST" else None

    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        peer.fails = fails
        state, text, _ = outcome(tested.send("write"))
        assert (state, text) == (
            "failed",
            "The agent books has refused the message (HTTP status 500).",
        )


def test_a_message_is_not_sent_again_while_nobody_can_look_for_it() -> None:
    """Its answer is lost, and the list of tasks fails inside: it is looked for later on."""

    def fails(request: httpx.Request, now: str) -> httpx.Response | None:
        if b"SendMessage" in request.content and now == "after":
            return httpx.Response(504)
        if b"ListTasks" in request.content and len(failed) < 2:
            failed.append(request)
            return httpx.Response(500)
        return None

    failed: list[httpx.Request] = []
    with Peer(stock, CARD) as peer, bench(peer, buys) as tested:
        peer.fails = fails
        assert outcome(tested.send("write")) == ["completed", "did write", ""]
    assert (len(failed), len(peer.clerk.said)) == (2, 1)


def test_an_agent_that_calls_itself_comes_to_an_end(peer: Peer) -> None:
    """Each call counts in the message's metadata, and the one too many fails with a sentence."""
    with bench(peer, buys) as tested:
        assert outcome(tested.send("write", metadata={DEPTH: 7}))[0] == "completed"
        run = tested.send("write", metadata={DEPTH: 8})
        assert run.state == "failed"
        assert "More than 8 agents have called one another for this task." in run.text
    assert [message.metadata[DEPTH] for message in peer.clerk.messages] == [8]


# -- the message -----------------------------------------------------------------------------------


def test_a_message_has_what_the_code_says() -> None:
    """Data, files, metadata and the conversation go along; the trace is in the headers."""

    async def sends(ctx: TaskContext) -> None:
        reply = await ctx.call_agent(
            "books",
            "write",
            data={"most": 20},
            files=ctx.files,
            metadata={"user": ctx.user},
            context_id="talk",
        )
        await ctx.complete(reply.context_id)

    with Peer(stock, CARD) as peer, bench(peer, sends) as tested:
        file = file_part("a.pdf", b"%PDF")
        assert tested.send(file, user="ann").artifacts["final-answer"].text == "talk"
    (message,) = peer.clerk.messages
    assert [part.WhichOneof("content") for part in message.parts] == ["text", "data", "raw"]
    assert (message.parts[2].raw, message.parts[2].filename) == (b"%PDF", "a.pdf")
    assert dict(message.metadata) == {"user": "ann", "a2a-serverless/call-depth": 1}


def test_calls_at_once_need_keys(peer: Peer) -> None:
    """Two asyncio tasks that call one agent tell their calls apart by a key."""

    async def both(ctx: TaskContext) -> None:
        keys = ctx.user_text.split()
        replies = await ctx.gather(*(ctx.call_agent("books", key, key=key) for key in keys))
        with pytest.raises(WrongCallError, match="tell them apart by `key=…`"):
            await ctx.gather(ctx.call_agent("books", "x"), ctx.call_agent("books", "y"))
        await ctx.complete(" ".join(reply.text for reply in replies))

    with bench(peer, both) as tested:
        assert tested.send("a b").artifacts["final-answer"].text == "did a did b"


def test_a_reply_of_a_branch_is_answered_behind_it(peer: Peer) -> None:
    """Calls at once are answered by the code that has gathered them, one after the other."""

    async def both(ctx: TaskContext) -> None:
        keys = ("a", "b")
        replies = await ctx.gather(*(ctx.call_agent("books", "ask", key=key) for key in keys))
        answered = [await reply.answer("soft") for reply in replies]
        await ctx.complete(" ".join(reply.text for reply in answered))

    with bench(peer, both) as tested:
        run = tested.send("go")
        assert run.artifacts["final-answer"].text == "did soft did soft", run
    assert len(peer.clerk.messages) == 4


def test_a_call_in_a_step_waits_in_its_process(peer: Peer) -> None:
    """The step is the record; killed under way, it finds the task that it has opened."""

    async def within(ctx: TaskContext) -> None:
        async def tool() -> str:
            reply = await ctx.call_agent("books", ctx.user_text)
            await ctx.emit_text_artifact("called", "note")
            return reply.text

        await ctx.complete(await ctx.step("tool", tool))

    with bench(peer, within) as tested:
        run = tested.send("write", kill_after=1)
        assert (run.artifacts["final-answer"].text, run.attempts) == ("did write", 2)
        assert run.steps == ("tool",)
    assert len(peer.clerk.said) == 1


def test_a_reply_is_answered_with_its_own_credentials(peer: Peer) -> None:
    """Of two Remotes of one URL each gets the answer to what it was asked with its own headers."""

    async def both(ctx: TaskContext) -> None:
        ann, bob = (peer.remote(headers={"X-API-Key": key}) for key in ("ann", "bob"))
        asked = await ctx.call_agent(ann, "ask", key="1")
        await ctx.call_agent(bob, "write", key="2")
        await ctx.complete((await asked.answer("soft")).text)

    with bench(peer, both) as tested:
        assert tested.send("go").artifacts["final-answer"].text == "did soft"
    keys = {request.headers["x-api-key"] for request in peer.requests if b"soft" in request.content}
    assert keys == {"ann"}


def test_files_have_a_limit_in_all(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is too large by them is not sent."""
    monkeypatch.setattr(calls, "MOST_FILES", 6)

    async def sends(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match="at most 6 bytes in a message"):
            await ctx.call_agent("books", "write", files=ctx.files)
        await ctx.complete()

    with bench(peer, sends) as tested:
        assert tested.send(file_part("a", b"12345678")).state == "completed"
    assert not peer.requests


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda ctx: ctx.call_agent("boks", "x"), r"a name in `agents` of the Worker \('books'\)"),
        (lambda ctx: ctx.call_agent(7, "x"), "a URL, a card or a Remote, and got '7'"),
        (lambda ctx: ctx.call_agent("books", "x", timeout_s=-1), "takes as `timeout_s` seconds"),
        (lambda ctx: ctx.call_agent("books", "x", data={1, 2}), "JSON value"),
        (lambda ctx: ctx.call_agent("books", "x", on_text="show"), "takes as `on_text` a function"),
        (lambda ctx: ctx.run_sync(asyncio.run, ctx.call_agent("books", "x")), "within a thread"),
        (lambda ctx: ctx.poll("look", ctx.call_agent, "books", "x"), r"within a look of ctx\.poll"),
        (
            lambda ctx: ctx.call_agent("books", "x", key="k" * 300),
            r"ctx\.call_agent takes a text as its key",
        ),
    ],
)
def test_a_wrong_call_says_the_right_one(peer: Peer, call: Any, sentence: str) -> None:
    """Wrong arguments and places are refused before anything is sent."""

    async def wrong(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match=sentence):
            await call(ctx)
        await ctx.complete("refused")

    with bench(peer, wrong) as tested:
        assert tested.send("go").state == "completed"
    assert not peer.requests


def test_a_reply_that_asks_nothing_takes_no_answer(peer: Peer) -> None:
    """`answer` of a task that has ended is refused with a sentence."""

    async def answers_all(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", "write")
        with pytest.raises(WrongCallError, match="is completed, and asks nothing"):
            await reply.answer("x")
        await ctx.complete("refused")

    with bench(peer, answers_all) as tested:
        assert tested.send("go").state == "completed"


class Reader(AgentExecutor):
    """Reads a book aloud, a word at a time; it waits before the last one until it may go on."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go_on = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        self.said.append(context.get_user_input())
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await task.start_work()
        words = context.get_user_input().split()
        for number, word in enumerate(words):
            if number == len(words) - 1:
                await self.go_on.wait()
            await task.add_artifact(
                [Part(text=word)], artifact_id=words[0], append=number > 0, last_chunk=False
            )
        if words[0] == "ask":
            await task.requires_input(task.new_agent_message([Part(text="more?")]))
        else:
            await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@pytest.fixture(params=["stock"])
def reader(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Remote]]:
    """A reader behind a server that has a port, so that its streams come event by event."""
    with Peer(SIDES[request.param], CARD, Reader()) as peer, peer.listening() as url:
        card = copied(CARD)
        card.supported_interfaces[0].url = f"{url}/"
        yield peer, Remote(card)


def go_on(peer: Peer) -> None:
    peer.run(asyncio.sleep(0))
    peer._loop.call_soon_threadsafe(peer.clerk.go_on.set)


@pytest.mark.parametrize("reader", ["stock", "ours"], indirect=True)
def test_text_is_passed_on_while_it_grows(reader: tuple[Peer, Remote]) -> None:
    """The last word is not written before the one before it has been passed on, and emitted."""
    peer, books = reader
    pieces: list[str] = []

    async def aloud(ctx: TaskContext) -> None:
        async def show(piece: str) -> None:
            pieces.append(piece)
            await ctx.emit_text_artifact(piece, "read", append=True)
            if "two" in piece:
                go_on(peer)

        reply = await ctx.call_agent("books", ctx.user_text, on_text=show)
        await ctx.complete(reply.text)

    with AgentBench(Buyer(aloud, books)) as tested:
        run = tested.send("one two three")
    assert "".join(pieces) == run.artifacts["read"].text == "onetwothree"
    assert run.artifacts["final-answer"].text == "onetwothree"
    assert len(pieces) > 1


def test_what_a_dead_process_has_passed_on_is_taken_back(reader: tuple[Peer, Remote]) -> None:
    """The next one gets the text from its beginning, of the same task; a client gets it once."""
    peer, books = reader
    killed: list[str] = []

    async def aloud(ctx: TaskContext) -> None:
        async def show(piece: str) -> None:
            await ctx.emit_text_artifact(piece, "read", append=True)
            if "two" in piece and not killed:
                killed.append(piece)
                tested._process._kill()
                await asyncio.Event().wait()
            go_on(peer)

        await ctx.complete((await ctx.call_agent("books", ctx.user_text, on_text=show)).text)

    with AgentBench(Buyer(aloud, books)) as tested:
        run = tested.send("one two three")
    assert (run.artifacts["read"].text, run.attempts) == ("onetwothree", 2)
    assert peer.clerk.said == ["one two three"]


def test_the_text_behind_a_question_is_passed_on_once(reader: tuple[Peer, Remote]) -> None:
    """What was there at the question is not said again with what follows its answer."""
    peer, books = reader
    go_on(peer)

    async def aloud(ctx: TaskContext) -> None:
        pieces: list[str] = []
        reply = await ctx.call_agent("books", "ask two", on_text=pieces.append)
        assert reply.question == "more?"
        reply = await reply.answer("book three")
        await ctx.complete_json(["".join(pieces), reply.text])

    with AgentBench(Buyer(aloud, books)) as tested:
        shown = tested.send("read").artifacts["final-answer"].data[0]
    assert shown == ["asktwo\nbookthree", "asktwo\nbookthree"]


@pytest.mark.parametrize("after_s", [0, 30, 5000])
def test_a_call_that_outlives_its_process_passes_on_the_rest(after_s: float) -> None:
    """No process waits where nothing streams; the text comes in one piece then."""
    pieces: list[str] = []

    async def aloud(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", "tea", on_text=pieces.append)
        await ctx.complete(reply.text)

    agents = {"books": lambda _: Outcome("a book", after_s=after_s)}
    with AgentBench(Buyer(aloud, Remote("http://books")), agents=agents) as tested:
        assert tested.send("tea").artifacts["final-answer"].text == "a book"
    assert pieces == ["a book"]


def test_a_stream_that_has_missed_the_end_is_left(
    reader: tuple[Peer, Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time without an event the call waits without it; the rest of the text comes then."""
    peer, books = reader
    monkeypatch.setattr(calls, "_IN_STEP_S", 0.2)
    follow = remotes.RemoteClient.follow
    pieces: list[str] = []

    async def deaf(self: Any, task_id: str) -> Any:
        async with aclosing(follow(self, task_id)) as events:
            yield await anext(events)
            go_on(peer)
            await asyncio.Event().wait()

    monkeypatch.setattr(remotes.RemoteClient, "follow", deaf)

    async def aloud(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", ctx.user_text, on_text=pieces.append)
        await ctx.complete(reply.text)

    with AgentBench(Buyer(aloud, books)) as tested:
        assert tested.send("one two").artifacts["final-answer"].text == "onetwo"
    assert "".join(pieces) == "onetwo"
