"""Calls of other agents: what comes back, what a kill repeats, what is canceled and refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.helpers import new_task_from_user_message
from a2a.server import tasks as sdk
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.types import AgentCard, Part
from google.protobuf.json_format import MessageToJson
from starlette.applications import Starlette
from starlette.types import ASGIApp

from a2a_serverless.http.app import create_app
from a2a_serverless.steps import call_agent
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.stores import DynamoDBTaskEventStream, DynamoDBTaskStore
from a2a_serverless.stores.layout import memory_table
from a2a_serverless.tasks.entries import copied
from a2a_serverless.worker import Remote, TaskContext, WaitTimeoutError, calls, remotes
from a2a_serverless.worker.calls import DEPTH
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless_tools.testing import AgentBench, Outcome, Run, file_part, step
from tests.conformance.sides import CARD, durable, stock
from tests.support.peers import Fails, Peer
from tests.unit.worker.stand import Handle, Log, Patch, Script, actions, line


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


class Buyer(Script):
    """Runs a function of its context, and knows one other agent."""

    def __init__(self, handle: Handle, books: Remote) -> None:
        super().__init__(handle)
        self.agents = {"books": books}


def bench(peer: Peer, handle: Handle, **more: Any) -> AgentBench:
    return AgentBench(Buyer(handle, peer.remote()), **more)


def answer_of(peer: Peer, handle: Handle, *said: Any, **more: Any) -> str:
    with bench(peer, handle) as tested:
        return text_of(tested.send(*said or ("go",), **more))


def text_of(run: Run) -> str:
    return run.artifacts["final-answer"].text


async def buys(ctx: TaskContext) -> None:
    """Says to the other agent what the client says, and completes with what comes back."""
    reply = await ctx.call_agent("books", ctx.user_text)
    state = reply.state.upper()  # as logs have the word of our own task's state
    await ctx.complete_json([state, reply.text, reply.question])


def outcome(run: Run) -> list[str]:
    state, *texts = run.artifacts["final-answer"].data[0]
    return [state.lower(), *texts]


def once(part: bytes, moment: str, does: Callable[[], int]) -> Fails:
    """Answers the first request with such a part with a status, before or after it is done."""
    done: list[bool] = []

    def fails(request: httpx.Request, now: str) -> httpx.Response | None:
        if done or now != moment or part not in request.content:
            return None
        done.append(True)
        return httpx.Response(does())

    return fails


def killed(tested: AgentBench) -> int:
    """Kill the caller's process, from the thread of the server that it has asked."""
    tested._process._loop.call_soon_threadsafe(tested._process._kill)
    return 503


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


@each_side
@pytest.mark.parametrize("said", [b'"ask"', b'"soft"'])
def test_a_message_whose_answer_was_lost_is_found(peer: Peer, said: bytes) -> None:
    """A message that opens a task, and one that answers, count once though no answer came."""
    peer.fails = once(said, "after", lambda: 504)
    assert answer_of(peer, orders, "ask") == "did soft"
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
def test_a_caller_killed_as_it_sends_opens_one_task(peer: Peer, said: bytes, moment: str) -> None:
    """It dies before the other agent has the message, or before it has the other's answer."""
    peer.fails = once(said, moment, lambda: killed(tested))
    with bench(peer, orders) as tested:
        run = tested.send("ask")
        assert (text_of(run), run.attempts) == ("did soft", 2)
    assert [text for _, text in peer.clerk.said] == ["ask", "soft"]


def go_on(peer: Peer) -> None:
    """Let the other task end."""
    peer.run(asyncio.sleep(0))
    peer._loop.call_soon_threadsafe(peer.clerk.go_on.set)


# -- cancel and time-out ---------------------------------------------------------------------------

SENT = step("ctx.call_agent.sent books")


@each_side
def test_a_cancel_cancels_the_other_task_while_nobody_runs(peer: Peer) -> None:
    """The caller was killed, sleeps, or asks its own client: the records say what to cancel."""

    async def asks(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", ctx.user_text)
        await reply.answer((await ctx.ask(reply.question)).text)

    with bench(peer, asks) as tested:
        assert tested.cancel(tested.send("ask")).state == "canceled"
    with bench(peer, buys) as tested:
        assert tested.send("wait", cancel_after=SENT).state == "canceled"
    assert peer.states == ["CANCELED", "CANCELED"]


@pytest.mark.parametrize(
    ("died", "said", "left"),
    [("before", "wait", ["CANCELED"]), ("after", "wait", ["CANCELED"]), ("before", "message", [])],
)
def test_a_cancel_finds_a_message_whose_record_is_missing(
    peer: Peer, died: str, said: str, left: list[str], caplog: Log
) -> None:
    """Killed between sending and its record: the task is found, or opened, and then canceled.

    One that is answered by a message alone has no task.
    """

    def asked() -> int:
        tested.cancel_running()
        return 504

    peer.fails = once(b"SendMessage", died, asked)
    with bench(peer, buys) as tested:
        assert tested.send(said).state == "canceled"
    assert peer.states == left
    assert "call_not_canceled" not in actions(caplog)


class Plain(AgentExecutor):
    """Calls another agent by its URL in its own code, and does nothing at a cancel but fail."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        reply = await call_agent("http://test", context.get_user_input())
        await TaskContext(context, event_queue).complete(reply.text)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise RuntimeError("nothing to cancel")


def test_an_executors_cancel_cancels_its_calls(peer: Peer, monkeypatch: Any, caplog: Log) -> None:
    """The official interface's own agent needs no code for that, and its error changes nothing."""
    monkeypatch.setattr(Remote, "connected", lambda _, *by: remotes.connected(peer.remote(), *by))
    with AgentBench(Plain) as tested:
        sent = step("ctx.call_agent.sent http://test/")
        assert tested.send("wait", cancel_after=sent).state == "canceled"
    assert peer.states == ["CANCELED"]
    assert "nothing to cancel" in caplog.text


def not_canceled(caplog: Log) -> str:
    return str(line(caplog, "call_not_canceled")["said"])


def test_what_an_agent_cancels_itself_is_not_cut_off(peer: Peer, caplog: Log) -> None:
    """The other agent hangs: the agent's own cancel runs beside it, and the log says what does."""
    released: list[str] = []

    class Cancels(Buyer):
        async def cancel(self, ctx: TaskContext) -> None:
            released.append(ctx.task_id)

    async def hangs(request: httpx.Request) -> httpx.Response:
        if b"CancelTask" in request.content:
            await asyncio.Event().wait()
        return await peer.handle_async_request(request)

    agent = Cancels(buys, Remote(peer.url, transport=httpx.MockTransport(hangs)))
    with AgentBench(agent, cancel_timeout_s=0.3) as tested:
        assert tested.send("wait", cancel_after=SENT).state == "canceled"
    assert len(released) == 1
    assert "The agent books was not asked (CancelledError)" in not_canceled(caplog)


def test_a_cancel_says_that_a_long_url_is_not_in_the_records(peer: Peer, caplog: Log) -> None:
    """In another process the address of a Remote is not known, and none that is cut is called."""

    async def asks(ctx: TaskContext) -> None:
        remote = Remote(f"http://test/{'x' * 100}", transport=peer)
        await ctx.ask((await ctx.call_agent(remote, "ask")).question)

    shown = httpx.Response(200, text=MessageToJson(peer.card))
    peer.fails = lambda request, _: shown if request.method == "GET" else None
    with bench(peer, asks) as tested:
        run = tested.send("go")
        before = len(peer.requests)
        assert (tested.cancel(run).state, len(peer.requests)) == ("canceled", before)
    assert "has only the beginning of its URL" in not_canceled(caplog)


def keyed(peer: Peer, *keys: str) -> list[Remote]:
    """Remotes of one URL with keys of their own."""
    return [peer.remote(headers={"X-API-Key": key}) for key in keys]


def test_each_remote_has_its_own_credentials(peer: Peer) -> None:
    """Of two Remotes of one URL each answers, and cancels, what it has opened."""

    async def both(ctx: TaskContext) -> None:
        ann, bob = keyed(peer, "ann", "bob")
        asked = await ctx.call_agent(ann, "ask", key="1")
        await ctx.call_agent(bob, "ask", key="2")
        await ctx.call_agent(ann, "ask", key="3")
        await asked.answer("soft")
        tested.cancel_running()
        await ctx.sleep(30)

    with bench(peer, both) as tested:
        assert tested.send("go").state == "canceled"
    for part, keys in ((b"soft", {"ann"}), (b"CancelTask", {"ann", "bob"})):
        sent = [each for each in peer.requests if part in each.content]
        assert {each.headers["x-api-key"] for each in sent} == keys


def test_a_cancel_guesses_no_credentials(peer: Peer, caplog: Log) -> None:
    """Killed behind two Remotes of one URL, the code has come to neither call that is recorded."""
    starts: list[str] = []

    async def both(ctx: TaskContext) -> None:
        ann, bob, eve = keyed(peer, "ann", "bob", "eve")
        starts.append(ctx.task_id)
        if len(starts) == 2:
            await ctx.call_agent(bob, "ask", key="2")
            await ctx.call_agent(eve, "ask", key="3")
            tested.cancel_running()
            await ctx.sleep(30)
        await ctx.call_agent(ann, "ask", key="1")
        tested._process._kill()
        await asyncio.get_running_loop().create_future()

    with bench(peer, both) as tested:
        assert tested.send("go").state == "canceled"
    assert "Which Remote of http://test/ has called it" in not_canceled(caplog)


@pytest.mark.parametrize("dies", [False, True])
def test_a_time_out_raises_and_cancels(peer: Peer, *, dies: bool) -> None:
    """The other task is canceled for good, also if the caller dies behind that cancel."""
    notes: list[str] = []

    async def waits(ctx: TaskContext) -> None:
        try:
            await ctx.call_agent("books", "wait", timeout_s=300)
        except WaitTimeoutError as error:
            await ctx.step("note", notes.append, str(error))
            await ctx.sleep(120)
            await ctx.complete("late")

    if dies:
        peer.fails = once(b"CancelTask", "after", lambda: killed(tested))
    with bench(peer, waits) as tested:
        run = tested.send("go")
        assert (text_of(run), peer.states) == ("late", ["CANCELED"])
        assert dies or 300 <= tested.clock.monotonic() < 600
    assert ["The agent books has not answered in time" in note for note in notes] == [True]


# -- agents that cannot be called ------------------------------------------------------------------


def answers(status: int, text: str = "", **headers: str) -> Fails:
    """Answers each message so, and the card as the server does."""
    given = httpx.Response(status, text=text, headers=headers)
    return lambda request, _: given if request.method == "POST" else None


def result(content: str) -> Fails:
    """Answers each message with a JSON-RPC result of this content."""
    body = f'{{"jsonrpc": "2.0", "id": "1", "result": {content}}}'
    return answers(200, body, **{"content-type": "application/json"})


def empty_looks(request: httpx.Request, moment: str) -> httpx.Response | None:
    """The other agent has a task, and shows an empty one when it is looked at."""
    is_look = moment == "before" and b"GetTask" in request.content
    return result("{}")(request, moment) if is_look else None


def card(url: str = "http://test/", version: str = "1.0", *, pushes: bool = False) -> AgentCard:
    made = copied(CARD)
    made.supported_interfaces[0].url = url
    made.supported_interfaces[0].protocol_version = version
    made.capabilities.push_notifications = pushes
    return made


TOO_LARGE = '{"message": {"parts": [{"data": {"price": 1e400}}]}}'
ENDED = '{"state": "TASK_STATE_COMPLETED"}'
DONE = f'{{"task": {{"id": "t", "status": {ENDED}, "metadata": {{"n": 1e400}}}}}}'


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (answers(401), "The agent books has refused the message: HTTP status 401."),
        (answers(307, location="http://other/"), "a redirect, which is not followed"),
        (answers(500), "The agent books has refused the message (HTTP status 500)."),
        (lambda *_: httpx.Response(404), "The agent books cannot be called by its card: HTTP"),
        (lambda *_: httpx.Response(200, text="<p>"), "by its card: Failed to parse JSON"),
        (result("null"), "has refused the message: "),
        (result("7"), "has refused the message: "),
        (result("{}"), "has refused the message: ValueError"),
        (result("[]"), "has refused the message: ValueError"),
        (result('{"task": {}}'), "has refused the message: Response has a task without an id"),
        (result(TOO_LARGE), "what is no JSON"),
        (result(DONE), "what is no JSON"),
        (result('{"task": {"id": "t"}, "message": 1}'), "has refused the message: "),
        (empty_looks, "another task, or with none"),
        (card(version="0.3"), "has refused the message"),
        (card(url="http://test/elsewhere"), "HTTP status 404"),
        (card(url="none"), "cannot be called"),
        (None, "more than 16,000,000 bytes"),
    ],
)
def test_an_agent_that_cannot_be_called_has_failed(peer: Peer, fails: Any, why: str) -> None:
    """Its answers are damaged, too large or refusals, or its card lies: a sentence says why."""
    if isinstance(fails, AgentCard):
        peer.card = fails
    else:
        peer.fails = fails
    said = {empty_looks: "wait", None: "large"}
    with bench(peer, buys) as tested:
        run = tested.send("write" if isinstance(fails, AgentCard) else said.get(fails, "write"))
    state, text, _ = outcome(run)
    assert (state, text[-1]) == ("failed", ".")
    assert why in text


def test_an_agent_of_0_3_is_called() -> None:
    """The SDK's client speaks the version that the card names; a question is answered, too."""
    with Peer(durable, card(version="0.3")) as peer:
        assert (answer_of(peer, orders, "ask"), len(peer.clerk.tasks)) == ("did soft", 1)


def test_credentials_go_to_the_agents_own_host_alone(peer: Peer, caplog: Log) -> None:
    """A card that names another host does not get them; they are neither logged nor stored."""
    caplog.set_level(logging.DEBUG)
    (remote,) = keyed(peer, "secret")
    peer.card = card(url="http://thief/")
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
def test_what_the_authors_own_code_raises_is_said_by_its_type(peer: Peer, error: Exception) -> None:
    """Its text may be a token: neither the reply nor the record has it."""

    class Bad(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
            if b"SendMessage" in request.content:
                raise error
            yield request

    with AgentBench(Buyer(buys, peer.remote(auth=Bad()))) as tested:
        _, text, _ = outcome(tested.send("write"))
    assert text == f"The agent books has refused the message: {type(error).__name__}."


def test_an_agent_that_is_away_is_called_until_it_is_back(peer: Peer) -> None:
    """For an hour there is no answer: the message is sent once, and no attempt is used up."""

    def fails(request: httpx.Request, _: str) -> httpx.Response | None:
        return httpx.Response(503) if tested.clock.monotonic() < 3600 else None

    peer.fails = fails
    with bench(peer, buys, max_attempts=1) as tested:
        assert outcome(tested.send("write")) == ["completed", "did write", ""]
        assert len(peer.requests) < 60
    assert len(peer.clerk.said) == 1


def test_a_message_is_not_sent_again_while_nobody_can_look_for_it(peer: Peer) -> None:
    """Its answer is lost, and the list of tasks fails inside: it is looked for later on."""
    failed: list[httpx.Request] = []

    def fails(request: httpx.Request, now: str) -> httpx.Response | None:
        if b"SendMessage" in request.content and now == "after":
            return httpx.Response(504)
        if b"ListTasks" in request.content and len(failed) < 2:
            failed.append(request)
            return httpx.Response(500)
        return None

    peer.fails = fails
    with bench(peer, buys) as tested:
        assert outcome(tested.send("write")) == ["completed", "did write", ""]
    assert (len(failed), len(peer.clerk.said)) == (2, 1)


def test_a_message_is_sent_again_where_it_is_not_found(peer: Peer) -> None:
    """The list has another task alone, or the other agent has no list: its server decides then."""

    async def talks(ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", ctx.user_text, context_id="talk")
        await ctx.complete(reply.text)

    with bench(peer, talks) as tested:
        tested.send("first")
        peer.fails = once(b"second", "before", lambda: 504)
        assert text_of(tested.send("second")) == "did second"
        lost = once(b"third", "after", lambda: 504)
        error = {"jsonrpc": "2.0", "id": "1", "error": {"code": -32601, "message": "no list"}}

        def fails(request: httpx.Request, now: str) -> httpx.Response | None:
            return lost(request, now) or (
                httpx.Response(200, json=error) if b"ListTasks" in request.content else None
            )

        peer.fails = fails
        assert text_of(tested.send("third")) == "did third"
    assert [text for _, text in peer.clerk.said] == ["first", "second", "third", "third"]


def test_an_agent_that_calls_itself_comes_to_an_end(peer: Peer) -> None:
    """Each call counts in the message's metadata, and the one too many fails with a sentence."""
    with bench(peer, buys) as tested:
        assert outcome(tested.send("write", metadata={DEPTH: 7}))[0] == "completed"
        run = tested.send("write", metadata={DEPTH: 8})
    assert run.state == "failed"
    assert "More than 8 agents have called one another for this task." in run.text
    assert [message.metadata[DEPTH] for message in peer.clerk.messages] == [8]


# -- the message -----------------------------------------------------------------------------------


def test_a_message_has_what_the_code_says(peer: Peer) -> None:
    """Data, files, metadata and the conversation go along; the trace is in the headers."""

    async def sends(ctx: TaskContext) -> None:
        about: dict[str, Any] = {"metadata": {"user": ctx.user}, "context_id": "talk"}
        data = {"most": 20}
        reply = await ctx.call_agent("books", "write", data=data, files=ctx.files, **about)
        await ctx.complete(reply.context_id)

    linked = Part(url="https://files.example/b.pdf", filename="b.pdf")
    assert answer_of(peer, sends, [file_part("a.pdf", b"%PDF"), linked], user="ann") == "talk"
    (message,) = peer.clerk.messages
    assert [part.WhichOneof("content") for part in message.parts] == ["text", "data", "raw", "url"]
    assert (message.parts[3].url, message.parts[3].filename) == (linked.url, "b.pdf")
    assert (message.parts[2].raw, message.parts[2].filename) == (b"%PDF", "a.pdf")
    assert dict(message.metadata) == {"user": "ann", "a2a-serverless/call-depth": 1}


def test_an_agent_is_called_by_its_card(peer: Peer) -> None:
    """The first URL in it is its name, and it is not asked for its card."""

    async def by_card(ctx: TaskContext) -> None:
        reply = await ctx.call_agent(Remote(peer.card, transport=peer), "write")
        await ctx.complete(f"{reply.agent}: {reply.text}")

    assert answer_of(peer, by_card) == f"{peer.card.supported_interfaces[0].url}: did write"
    assert {request.method for request in peer.requests} == {"POST"}


def test_a_question_is_answered_in_a_step(peer: Peer) -> None:
    """As outside of one; the other agent hears each message once."""

    async def within(ctx: TaskContext) -> None:
        async def tool() -> str:
            return (await (await ctx.call_agent("books", "ask")).answer("soft")).text

        await ctx.complete(await ctx.step("tool", tool))

    assert answer_of(peer, within) == "did soft"
    assert [text for _, text in peer.clerk.said] == ["ask", "soft"]


def test_calls_at_once_need_keys(peer: Peer) -> None:
    """A key tells two calls at once apart; their replies are answered one after the other."""

    async def both(ctx: TaskContext) -> None:
        replies = await ctx.gather(*(ctx.call_agent("books", "ask", key=key) for key in "ab"))
        answered = [await reply.answer("soft") for reply in replies]
        with pytest.raises(WrongCallError, match="tell them apart by `key=…`"):
            await ctx.gather(ctx.call_agent("books", "x"), ctx.call_agent("books", "y"))
        with pytest.raises(WrongCallError, match="is completed, and asks nothing"):
            await answered[0].answer("x")
        await ctx.complete(" ".join(reply.text for reply in answered))

    assert (answer_of(peer, both), len(peer.clerk.messages)) == ("did soft did soft", 4)


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
    assert (text_of(run), run.attempts, run.steps) == ("did write", 2, ("tool",))
    assert len(peer.clerk.said) == 1


LONG = "k" * 300
WRONG: list[tuple[Callable[[TaskContext], Awaitable[Any]], str]] = [
    (lambda ctx: ctx.call_agent("boks", "x"), r"a name in `agents` of the Worker \('books'\)"),
    (lambda ctx: ctx.call_agent(7, "x"), "a URL, a card or a Remote, and got '7'"),  # type: ignore[arg-type]
    (lambda ctx: ctx.call_agent("books", "x", timeout_s=-1), "takes as `timeout_s` seconds"),
    (lambda ctx: ctx.call_agent("books", "x", data={1, 2}), "JSON value"),
    (lambda ctx: ctx.call_agent("books", "x", on_text="show"), "takes as `on_text` a function"),  # type: ignore[arg-type]
    (lambda ctx: ctx.run_sync(asyncio.run, ctx.call_agent("books", "x")), "within a thread"),
    (lambda ctx: ctx.poll("look", ctx.call_agent, "books", "x"), r"within a look of ctx\.poll"),
    (lambda ctx: ctx.call_agent("books", "x", key=LONG), r"ctx\.call_agent takes a text as its k"),
    (lambda ctx: ctx.call_agent("books", "x", files=ctx.files), "at most 6 bytes in a message"),
]


@pytest.mark.parametrize(("call", "sentence"), WRONG)
def test_a_wrong_call_says_the_right_one(
    peer: Peer, call: Any, sentence: str, monkeypatch: Patch
) -> None:
    """Wrong arguments and places, and files that are too large, are refused; nothing is sent."""
    monkeypatch.setattr(calls, "MOST_FILES", 6)

    async def wrong(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match=sentence):
            await call(ctx)
        await ctx.complete("refused")

    assert answer_of(peer, wrong, file_part("a", b"12345678")) == "refused"
    assert not peer.requests


# -- text that grows -------------------------------------------------------------------------------


class Reader(AgentExecutor):
    """Reads a book aloud, a word at a time; it waits before the last one until it may go on."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go_on = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = sdk.TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
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
        yield peer, Remote(card(f"{url}/"))


@pytest.mark.parametrize(
    ("reader", "dies"), [("stock", False), ("ours", False), ("stock", True)], indirect=["reader"]
)
def test_text_is_passed_on_while_it_grows(reader: tuple[Peer, Remote], *, dies: bool) -> None:
    """Each word at once; what a dead process has passed on is taken back, and comes once."""
    peer, books = reader
    pieces, killed = list[str](), list[str]()

    async def aloud(ctx: TaskContext) -> None:
        async def show(piece: str) -> None:
            pieces.append(piece)
            await ctx.emit_text_artifact(piece, "read", append=True)
            if dies and "two" in piece and not killed:
                killed.append(piece)
                tested._process._kill()
                await asyncio.Event().wait()
            if "two" in piece or killed:
                go_on(peer)

        await ctx.complete((await ctx.call_agent("books", ctx.user_text, on_text=show)).text)

    with AgentBench(Buyer(aloud, books)) as tested:
        run = tested.send("one two three")
    assert (run.artifacts["read"].text, text_of(run)) == ("onetwothree", "onetwothree")
    assert (run.attempts, peer.clerk.said) == (1 + dies, ["one two three"])
    assert dies or "".join(pieces) == "onetwothree"
    assert len(pieces) > 1


def test_an_agent_that_does_not_stream_gives_its_text_whole(peer: Peer) -> None:
    """It is not asked for a stream."""
    peer.card = copied(peer.card)
    peer.card.capabilities.streaming = False
    pieces: list[str] = []

    def looked(request: httpx.Request, _: str) -> None:
        if b"GetTask" in request.content:
            peer.clerk.go_on.set()

    async def aloud(ctx: TaskContext) -> None:
        await ctx.call_agent("books", "wait", on_text=pieces.append)
        await ctx.complete()

    peer.fails = looked
    with bench(peer, aloud) as tested:
        assert tested.send("go").state == "completed"
    assert "".join(pieces) == "waited"
    assert not [each for each in peer.requests if b"Subscribe" in each.content]


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
        assert text_of(tested.send("tea")) == "a book"
    assert pieces == ["a book"]


def test_a_stream_that_has_missed_the_end_is_left(reader: Any, monkeypatch: Patch) -> None:
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
        assert text_of(tested.send("one two")) == "onetwo"
    assert "".join(pieces) == "onetwo"


# -- notifications ---------------------------------------------------------------------------------

PUSHING = card(CARD.supported_interfaces[0].url, pushes=True)


async def orders_and_waits(ctx: TaskContext) -> None:
    """Calls an agent that works until it is told to go on."""
    await ctx.complete((await ctx.call_agent("books", "wait", timeout_s=7200)).text)


class Waiting(AgentBench):
    """A bench that calls a function while a turn sleeps; it may post, or let time pass."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, auth="none", **settings)
        app = create_app(self._settings, self._backends, CARD)
        self._app = httpx.ASGITransport(app)
        self.plan: list[Any] = []
        """What happens in the next sleeps: each returns a request to post, or None."""

    async def _wake(self, due_at: int) -> None:
        step = self.plan.pop(0) if self.plan else lambda: None
        given = step()
        if given is None:
            await super()._wake(due_at)
            return
        async with httpx.AsyncClient(transport=self._app) as client:
            answer = await client.post(given.url, content=given.content, headers=given.headers)
        assert answer.status_code == 200


@pytest.fixture
def mail() -> list[httpx.Request]:
    """What a server has posted, until a test delivers it."""
    return []


@pytest.fixture
def clerk(mail: list[httpx.Request]) -> Iterator[Peer]:
    """A clerk behind the SDK's server, which posts its notifications into the mailbox."""

    def kept(request: httpx.Request) -> httpx.Response:
        mail.append(request)
        return httpx.Response(200)

    @asynccontextmanager
    async def pushing(executor: AgentExecutor) -> AsyncIterator[ASGIApp]:
        store = sdk.InMemoryPushNotificationConfigStore()
        async with httpx.AsyncClient(transport=httpx.MockTransport(kept)) as client:
            handler = DefaultRequestHandler(
                executor,
                sdk.InMemoryTaskStore(),
                PUSHING,
                push_config_store=store,
                push_sender=sdk.BasePushNotificationSender(client, store),
            )
            yield Starlette(routes=create_jsonrpc_routes(handler, "/"))
            await handler.aclose()

    with Peer(pushing, PUSHING) as peer:
        yield peer


def ended(peer: Peer, mail: list[httpx.Request]) -> httpx.Request:
    """Let the other task end; return the notification of that."""
    go_on(peer)
    while not (found := [each for each in mail if b"COMPLETED" in each.content]):
        peer.states  # noqa: B018 - a request to the server, while its notification is on its way
    return found[-1]


def requests(clerk: Peer, method: str) -> list[httpx.Request]:
    return [each for each in clerk.requests if f'"{method}"'.encode() in each.content]


def forged(clerk: Peer, state: str, **form: Any) -> httpx.Request:
    """Return a notification that is not true of the other agent's task."""
    asked = requests(clerk, "CreateTaskPushNotificationConfig")[-1]
    url = str(json.loads(asked.content)["params"]["url"])
    content = f'{{"statusUpdate": {{"status": {{"state": "{state}"}}}}}}'
    return httpx.Request("POST", url, **{"content": content, **form})


def test_no_notification_is_believed(clerk: Peer, mail: list[httpx.Request]) -> None:
    """One without an end does nothing, one that lies makes the turn look, once: found soon."""
    buyer, starts = Buyer(orders_and_waits, clerk.remote()), [1]

    def is_unchanged() -> None:
        assert buyer.starts == starts[-1]

    def lies_again() -> httpx.Request:
        starts.append(buyer.starts)
        return forged(clerk, "TASK_STATE_COMPLETED")

    with Waiting(buyer) as bench:
        bench.plan = [
            *(lambda: forged(clerk, "TASK_STATE_WORKING"), is_unchanged),
            *(lambda: forged(clerk, "TASK_STATE_COMPLETED"), lies_again, is_unchanged),
            lambda: ended(clerk, mail),
        ]
        assert text_of(bench.send("go")) == "waited"
        assert 3600 < bench.clock.monotonic() < 3900
    assert bench.plan == []


@pytest.mark.parametrize(
    "form",
    [None, {"content": b"x" * 262_145}, {"headers": {"Content-Encoding": "gzip"}}],
    ids=["read", "long", "compressed"],
)
def test_a_notification_wakes_the_turn(clerk: Peer, mail: list[httpx.Request], form: Any) -> None:
    """It leaves its process for an hour, and goes on with a POST, be it readable or not."""

    def ends() -> httpx.Request:
        told = ended(clerk, mail)
        return told if form is None else forged(clerk, "?", **form)

    buyer = Buyer(orders_and_waits, clerk.remote())
    with Waiting(buyer) as bench:
        bench.plan = [ends]
        assert text_of(bench.send("go")) == "waited"
        assert bench.clock.monotonic() < 60
    assert (buyer.starts, len(clerk.clerk.said)) == (2, 1)
    assert len(requests(clerk, "GetTask")) <= 9
    assert len(requests(clerk, "CreateTaskPushNotificationConfig")) == 1


@pytest.mark.parametrize("url", ["", "https://10.0.0.1", "https://agent.example"])
def test_where_nobody_can_be_notified_it_is_looked_for(url: str) -> None:
    """The caller's own address is unknown or private, or the card lies: the looks are the usual."""
    with Peer(stock, PUSHING) as peer:
        buyer = Buyer(orders_and_waits, peer.remote())
        with Waiting(buyer, public_url=url) as bench:
            bench.plan = [lambda: None, lambda: go_on(peer)]
            assert text_of(bench.send("go")) == "waited"
            assert 180 < bench.clock.monotonic() < 400
        asked = requests(peer, "CreateTaskPushNotificationConfig")
        assert bool(asked) is (url == "https://agent.example")
