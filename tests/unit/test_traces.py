"""Traces: which spans a task has, what travels with and without them, who decides on them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from unittest import mock
from uuid import uuid4

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from a2a_serverless.errors import TaskNotFoundError, UnavailableError
from a2a_serverless.http.app import create_app
from a2a_serverless.observability import spans
from a2a_serverless.observability.otel import _Pausing, set_up
from a2a_serverless.observability.spans import incoming, loaded, span, stored, trace_context
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.function import PushStream
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import Retry, RetryLater, TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless_tools.local.sweeping import SweepRounds
from tests.support.a2a_calls import Agent as Client
from tests.support.a2a_calls import message
from tests.support.memory import commits_of
from tests.support.messages import storyteller
from tests.support.observed import ids_of, links_of, logged, parent_of, recorded
from tests.support.present import present
from tests.support.workers import Bench, PacedClock, S, idle
from tests.unit.push.receivers import OK, Receiver, status
from tests.unit.push.world import stream_record

TRACE = "67891233abcdef012345678912345678"
CLIENTS: Any = {"traceparent": f"00-{TRACE}-53995c3f42cd8ad8-01", "tracestate": "a=b"}
TEXT = "Two days in Lisbon:"
SECRETS = ("my secret", "a quota", "Lisbon")

T = TypeVar("T")


class Author(Worker):
    keeps_conversation = True

    def __init__(self) -> None:
        self.starts = 0
        self.goes_on = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        self.starts += 1
        await getattr(self, ctx.user_text.split()[-1])(ctx)
        if not ctx.turn_ended:
            await ctx.complete("Two days in Lisbon")

    async def _found(self) -> int:
        return 1

    async def quick(self, ctx: TaskContext) -> None:
        ctx.usage("model", input_tokens=3, output_tokens=2)

    async def raises(self, ctx: TaskContext) -> None:
        ctx.usage("model", input_tokens=3, output_tokens=2)
        if self.starts == 1:
            raise ValueError("my secret")

    async def fails(self, ctx: TaskContext) -> None:
        await ctx.fail("my secret")

    async def later(self, ctx: TaskContext) -> None:
        if self.starts == 1:
            raise RetryLater(120, "a quota")

    async def stalls(self, ctx: TaskContext) -> None:
        if self.starts == 1:
            await ctx.send_status("at it")
            await self.goes_on.wait()

    async def asks(self, ctx: TaskContext) -> None:
        await ctx.request_input("Which?")

    async def sleeps(self, ctx: TaskContext) -> None:
        await ctx.step("before", self._found)
        await ctx.sleep(600)

    async def long(self, ctx: TaskContext) -> None:
        await ctx.step("first", self._found)
        await ctx.sleep(50)
        await ctx.step("second", self._found)
        await ctx.step("third", self._found)

    async def steps(self, ctx: TaskContext) -> None:
        tries = iter([ValueError("my secret")])

        async def search() -> None:
            for error in tries:
                raise error

        await ctx.step("search", search, retry=Retry(tries=2, base_s=1))

    async def traces(self, ctx: TaskContext) -> None:
        tracer = trace.get_tracer("author")

        def call(name: str) -> None:
            with tracer.start_as_current_span(name):
                pass

        async def aside() -> None:
            call("in a task")

        tracer.start_span("left open")
        with tracer.start_as_current_span("model"):
            await ctx.run_sync(call, "in a thread")
            await ctx.step("own", call, "in a step")
            task = asyncio.create_task(aside())
        await task
        with tracer.start_as_current_span("elsewhere", context=Context()):
            await ctx.complete("Two days in Lisbon")


class World(Bench):
    """The functions of a deployment on one table, called one by one by words of `SCENARIOS`."""

    clock: PacedClock

    def __init__(self) -> None:
        own: dict[str, Any] = {
            "auth": "none",
            "conversations": "serial",
            "max_attempts": 2,
            "push_queue": "jobs",
            "queue": "q1",
            "quarantine_queue": "q2",
            "push_issuer": "https://agent.example",
            "push_allowed_hosts": "127.0.0.1",
            "worker_turns": 2,
            "turn_limit_s": 100,
        }
        self.sent: dict[str, Any] = {}
        self.begun: list[asyncio.Future[bool]] = []
        clock, settings, self.author = PacedClock(), Settings(**own), Author()
        backends = memory_backends(settings, clock)
        super().__init__(WorkerExecutor(self.author), clock=clock, backends=backends, **own)
        app = create_app(settings, backends, storyteller(pushes=True), entrypoint="stream")
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        self.commits = commits_of(self.storage)
        self.rounds = SweepRounds(backends, settings, backends.dead_letters)

    async def _passed(self, work: Awaitable[T]) -> T:
        """What `work` returns, while the clock goes on."""
        running = asyncio.ensure_future(work)
        while not running.done():
            await self.clock.pass_time(0.5)
        return running.result()

    async def say(self, word: str, *, hook: str = "", headers: Any = CLIENTS, **more: Any) -> None:
        """Send a message, without waiting for its turn."""
        configuration: dict[str, Any] = {"returnImmediately": True}
        if hook:
            configuration["taskPushNotificationConfig"] = {"url": hook}
        said = {"messageId": uuid4().hex, "text": f"{TEXT} {word}", **more}
        sent = Client(self.http).send(configuration=configuration, headers=headers, **said)
        self.sent = (await sent).task

    async def say_again(self, word: str) -> None:
        await self.say(word, taskId=self.sent["id"], contextId=self.sent["contextId"])

    async def say_beside(self, word: str) -> None:
        """Send a message of the same conversation that names no trace."""
        await self.say(word, headers=None, contextId=self.sent["contextId"])

    async def post(self, path: str, word: str) -> None:
        body, headers = {"message": message(f"{TEXT} {word}")}, {"A2A-Version": "1.0", **CLIENTS}
        await asyncio.gather(self.http.post(path, json=body, headers=headers), self.run())

    async def say_unsent(self, word: str) -> None:
        with mock.patch.object(self.operations, "send", side_effect=UnavailableError):
            await self.say(word)

    async def stop(self) -> None:
        """Cancel the task, while its worker works, or else works on it now."""
        asked = Client(self.http).call("CancelTask", {"id": self.sent["id"]}, CLIENTS)
        await asyncio.gather(self._passed(asked), *([] if self.begun else [self.run()]))

    async def _process(self, **options: Any) -> Coroutine[Any, Any, bool]:
        options = {"quarantine": self.backends.quarantine} | options
        return self.adapter.process(await self._passed(self.deliver()), **options)

    async def run(self) -> None:
        await self._passed(await self._process())

    async def run_for(self, seconds: str) -> None:
        """Run the next delivery in an invocation that has so long."""
        await self._passed(await self._process(deadline=self.clock.monotonic() + int(seconds)))

    async def begin(self) -> None:
        """Run the next delivery until its agent waits."""
        self.begun.append(asyncio.ensure_future(await self._process()))
        while not self.author.starts:
            await idle()

    async def release(self) -> None:
        """Let the agent that waits go on to its end."""
        self.author.goes_on.set()
        await self._passed(self.begun.pop())

    async def run_quarantined(self) -> None:
        (handle,) = await self.backends.quarantining().pull(1, 1)
        await self._passed(self.adapter.process(handle, is_quarantined=True))

    async def wait(self, seconds: str) -> None:
        await self.clock.pass_time(int(seconds))

    async def sweep(self) -> None:
        await self._passed(self.rounds.once())

    async def leave(self) -> None:
        """Leave the task's turn until there is a place for its caller."""
        await (await self.deliver()).ack()
        await self.storage.park(present(await self.storage.head(self.sent["id"])), "share")

    async def wake(self) -> None:
        await self.adapter.shares.refill(1)

    async def lose(self) -> None:
        """Let the deliveries of the next operation run out."""
        await present(self.backends.dead_letters).send((await self.deliver()).message)

    async def hooked(self, word: str, *answers: str) -> None:
        """Run a task whose webhook gives these answers, and then takes what is sent."""
        given = iter([status(int(answer)) for answer in answers])
        with Receiver(lambda _: next(given, OK)) as receiver:
            await self.say(word, hook=receiver.url())
            await self.run()
            push = self.backends.pushing()
            stream = PushStream(self.storage, push.jobs, self.settings.push_events)
            assert not await stream.process([stream_record(item, 1) for item in self.commits])
            pushing = Deliverer(self.storage, push, self.settings)
            while handles := await self._passed(push.jobs.pull(1, 60)):
                # Its call is a real one, during which the clock stands still.
                await pushing.deliver(handles[0], Budget(5, self.clock.monotonic() + 55))
        assert {told.headers["tracestate"] for told in receiver.requests} == {"a=b"}


SHOWN = {
    "a2a.attempt": "",
    "a2a.task.state": "",
    "gen_ai.usage.input_tokens": "",
    "a2a.step.retries": "retry ",
    "http.request.resend_count": "resend ",
    "error.type": "!",
    "a2a.interrupted_by": "<",
}
"""The attributes that a drawing shows, and how."""


def drawn(spans: Sequence[ReadableSpan]) -> list[str]:
    """Each span behind, or below, its parent; `NEW` begins a trace, `~` leads to a link."""
    own = {ids_of(span)[1]: span for span in spans}
    below: dict[str | None, list[str]] = {}
    for key, each in own.items():
        parent = parent_of(each)
        below.setdefault(parent if parent in own else None, []).append(key)

    def label(key: str) -> str:
        span, about = own[key], own[key].attributes or {}
        shown = [f"{word}{about[name]}" for name, word in SHOWN.items() if name in about]
        links = [f"~ {what} {own[to].name}" for what, to in links_of(span).items()]
        is_new = key in below[None] and ids_of(span)[0] != TRACE
        return " ".join([*(["NEW"] if is_new else []), span.name, *shown, *links])

    def lines(key: str, indent: str) -> list[str]:
        children = below.get(key, [])
        if len(children) == 1:
            first, *rest = lines(children[0], indent)
            return [f"{indent}{label(key)} > {first.lstrip()}", *rest]
        return [indent + label(key), *(x for one in children for x in lines(one, f"{indent}  "))]

    return [line for key in below[None] for line in lines(key, "")]


SCENARIOS = {
    "post /message:send quick": """
SendMessage > send q1 > process q1 > invoke_agent 1 completed 3
""",
    "say raises, run, run": """
SendMessage > send q1
  process q1 > invoke_agent 1 working 3 !ValueError
  process q1
    wait ValueError
    invoke_agent 2 completed 3 ~ previous attempt invoke_agent
""",
    "say fails, run": """
SendMessage > send q1 > process q1 > invoke_agent 1 failed !failed
""",
    "say later, run, run": """
SendMessage > send q1
  process q1 > invoke_agent 1 working !RetryLater
  process q1
    wait RetryLater
    invoke_agent 2 completed ~ previous attempt invoke_agent
""",
    "say stalls, begin, wait 60, run, run_quarantined, release": """
SendMessage > send q1
  process q1 > invoke_agent 1 working <TurnFinishedError
  process q1 > send q2 > process q2 > invoke_agent 2 completed ~ previous attempt invoke_agent
""",
    "say_unsent quick, wait 600, sweep, run": """
SendMessage
  send q1 !UnavailableError
  invoke_agent 1 completed 3 ~ delivery process q1
NEW sweep > send q1 > process q1
""",
    "say asks, run, say_again quick, run": """
SendMessage > send q1 > process q1 > invoke_agent 1 input_required
SendMessage > send q1 > process q1 > invoke_agent 1 completed 3 ~ previous turn SendMessage
""",
    "say sleeps, run, wait 600, sweep, run": """
SendMessage
  wait asleep
  send q1 > process q1 > invoke_agent 1 working <asleep > step before
  invoke_agent 1 completed ~ delivery process q1 ~ previous attempt invoke_agent
NEW sweep > send q1 > process q1
""",
    "say long, run_for 61, run": """
SendMessage > send q1 > process q1 > invoke_agent 1 working <handover
  step first
  step second
  send q1 > process q1
    wait handover
    invoke_agent 1 completed ~ previous attempt invoke_agent > step third
""",
    "say stalls, begin, stop": """
SendMessage > send q1 > process q1 > invoke_agent 1 canceled
CancelTask > send q1
""",
    "say quick, stop": """
SendMessage > send q1 > process q1 > cancel ~ turn SendMessage
CancelTask > send q1
""",
    "say long, begin, say_beside quick, run, release, run": """
SendMessage > send q1 > process q1 > invoke_agent 1 completed
  step first
  step second
  step third
  send q1 > process q1
NEW SendMessage
  send q1 > process q1
  invoke_agent 1 completed 3 ~ delivery process q1
""",
    "say quick, leave, wait 1, say_beside quick, leave, wait 10, wake, run, run": """
SendMessage
  send q1
  invoke_agent 1 completed 3 ~ delivery process q1 > send q1 > process q1
NEW SendMessage
  send q1
  invoke_agent 1 completed 3 ~ delivery process q1
NEW send q1 > process q1
""",
    "say quick, lose, sweep": """
SendMessage > send q1 > process dead letters
""",
    "say steps, run": """
SendMessage > send q1 > process q1 > invoke_agent 1 completed
  step search !ValueError
  step search retry 1
""",
    "hooked quick 503": """
SendMessage > send q1 > process q1 > invoke_agent 1 completed 3
  process jobs > POST !503
  process jobs > POST resend 1
""",
    "hooked traces": """
SendMessage > send q1 > process q1 > invoke_agent 1 completed
  model
    in a thread
    step own > in a step
    in a task
  process jobs > POST
NEW elsewhere
""",
}


@pytest.mark.long(one_in=3)
@pytest.mark.parametrize("words", SCENARIOS)
async def test_the_spans_of_a_task(words: str) -> None:
    """Each piece of work is a span of its client's trace, below what caused it, without content."""
    with recorded() as spans:
        world = World()
        for phrase in words.split(", "):
            verb, *rest = phrase.split()
            await asyncio.wait_for(getattr(world, verb)(*rest), 60)
        found = spans.take()
    assert drawn(found) == SCENARIOS[words].strip("\n").splitlines()
    seen = "".join(span.to_json() for span in found)
    assert [text for text in SECRETS if text in seen] == []


# -- what travels, who decides, what cannot be made or exported ----------------------------------


logger = logging.getLogger("a2a_serverless.test")

TRACE, ABOVE = "67891233abcdef012345678912345678", "53995c3f42cd8ad8"
PARENT = f"00-{TRACE}-{ABOVE}-01"


@pytest.mark.parametrize(
    ("parent", "state", "read"),
    [
        (PARENT, "a=b,c=d", {"traceparent": PARENT, "tracestate": "a=b,c=d"}),
        (PARENT, "", {"traceparent": PARENT}),
        (PARENT, "a=b\r\nX-Evil: 1", {"traceparent": PARENT}),
        (PARENT, "t@v=a b, c=d", {"traceparent": PARENT, "tracestate": "t@v=a b, c=d"}),
        (PARENT, "my secret", {"traceparent": PARENT}),
        (PARENT, "a=b,a=c", {"traceparent": PARENT}),
        (PARENT, "A=b", {"traceparent": PARENT}),
        (PARENT, "a=ü", {"traceparent": PARENT}),
        (PARENT, ",".join(f"a{number}=b" for number in range(33)), {"traceparent": PARENT}),
        (PARENT, "a=" + "b" * 65_536, {"traceparent": PARENT}),
        (f"{PARENT},{PARENT}", "a=b", {}),
        ("0" * 65_536, "a=b", {}),
        (f"00-{TRACE[:-1]}٣-{ABOVE}-01", "a=b", {}),
        (f"{PARENT}\r\nX-Evil: 1", "a=b", {}),
        (PARENT.upper(), "a=b", {}),
        (f"00-{'0' * 32}-{ABOVE}-01", "a=b", {}),
        (f"00-{TRACE}-{'0' * 16}-01", "a=b", {}),
        (f"ff-{TRACE}-{ABOVE}-01", "a=b", {}),
        ("", "a=b", {}),
    ],
)
def test_a_clients_trace_is_read_with_care(parent: str, state: str, read: dict[str, str]) -> None:
    """A well-formed trace is kept, and its state with it; anything else is left out, and unsaid."""
    given = {"traceparent": parent, "tracestate": state}
    assert incoming(given) == loaded(f"{parent} {state}") == read
    with logged() as lines, recorded() as seen, span("GET", incoming(given)):
        sent = trace_context()
    assert lines == []
    state_sent, state_read = (it.get("tracestate", "").replace(", ", ",") for it in (sent, read))
    assert state_sent == state_read
    assert (spans._trace_id(sent) == TRACE) is bool(read)
    assert len(seen.take()) == 1


def test_without_spans_a_trace_is_only_carried() -> None:
    """What a block sends has the ids that it was given, a block without any gets new ones."""
    fields = {"traceparent": PARENT, "tracestate": "a=b"}
    with logged() as lines, span("attempt", fields) as piece:
        piece.set({"a2a.turn": 1})
        piece.event("claimed")
        piece.fail("ValueError")
        assert (trace_context(), loaded(stored())) == (fields, fields)
        logger.info("inside")
        with span("sweep", {}):
            begun = trace_context()
            logger.info("of its own")
    assert trace_context() == {}
    assert stored() is None
    assert spans._trace_id(begun) not in ("", TRACE)
    assert [line["trace_id"] for line in lines] == [TRACE, spans._trace_id(begun)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("my secret"), "ValueError"),
        (UnavailableError(), "UnavailableError"),
        (TaskNotFoundError(), None),
        (asyncio.CancelledError(), None),
    ],
)
def test_a_failure_is_marked_by_its_type(error: BaseException, kind: str | None) -> None:
    """Faults are told from refusals, a cancel is neither, and no text gets into a span."""
    with recorded() as seen:
        with pytest.raises(type(error)), span("attempt"):
            raise error
        (found,) = seen.take()
    assert (found.attributes or {}).get("error.type") == kind
    assert found.status.is_ok is (kind is None)
    assert "my secret" not in found.to_json()


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        ("", "", 1),
        ("parentbased_always_off", "", 0),
        ("parentbased_traceidratio", "0.05", 0.05),
        ("parentbased_traceidratio", "no number", 1),
        ("", "0.05", 0.05),
        ("", "7", 1),
    ],
)
def test_the_share_is_that_of_standard_variables(sampler: str, argument: str, share: float) -> None:
    """The decision for a client's trace is made by what the SDK's own sampler reads."""
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert spans.sampled_share(environment) == share


def test_no_client_decides_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's flag counts as little as ids that a sampler by ratio would always take."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    lucky = f"00-{'1' * 16}{'0' * 15}1-{ABOVE}-01"
    shares = {"0": 0, "0.25": 250, "1": 1000}
    for share, expected in shares.items():
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
        with recorded():
            flags = [incoming({"traceparent": lucky})["traceparent"][-2:] for _ in range(1000)]
        assert flags.count("01") == pytest.approx(expected, abs=100)
        assert set(flags) <= {"00", "01"}


# -- what cannot be made or exported ------------------------------------------------------------

MANY_SPANS = 3_000
MOST_WAITING = 2048
"""The queue of the SDK's processor."""


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("my secret")


class Raising(SpanExporter):
    """Raises, refuses, or waits until it is let go."""

    def __init__(self, answer: Callable[[], SpanExportResult] = fail) -> None:
        self._answer = answer
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += 1
        return self._answer()


def with_processor(made: SpanProcessor) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(made)
    return provider


def ended() -> TracerProvider:
    provider = with_processor(BatchSpanProcessor(Raising()))
    provider.shutdown()
    return provider


def disabled() -> TracerProvider:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_SDK_DISABLED", "true")
        return TracerProvider()


BAD = dict.fromkeys(("on_start", "on_end", "force_flush"), fail)
PROVIDERS: dict[str, Callable[[], Any]] = {
    "a processor that raises": lambda: with_processor(type("Bad", (SpanProcessor,), BAD)()),
    "one that was ended": ended,
    "a disabled one": disabled,
    "one without spans": trace.NoOpTracerProvider,
    "one that cannot be hashed": type("Own", (TracerProvider,), {"__hash__": None}),
    "one that makes no tracer": type("Own", (TracerProvider,), {"get_tracer": fail}),
}


class Traced(Worker):
    """Makes spans, and leaves each hundredth open."""

    async def handle(self, ctx: TaskContext) -> None:
        with suppress(RuntimeError):  # the provider's, in the author's own code
            tracer = trace.get_tracer("author")
            for number in range(MANY_SPANS):
                made = tracer.start_span("author's")
                if number % 100:
                    made.end()
        await ctx.step("step", str)
        await ctx.complete("done")


async def run_traced(provider: Any) -> str:
    """Run a turn of `Traced` with a provider, as in a function; return its trace id."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace, "get_tracer_provider", lambda: provider)
        patched.setattr(spans, "_export", spans._Export())
        patched.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
        bench = Bench(WorkerExecutor(Traced()))
        with spans.span("request", {}):
            head = await bench.send("hello")
            given = spans._trace_id(spans.trace_context())
        assert await bench.work()
        spans.flush()
        assert (await bench.head(head)).state == S.TASK_STATE_COMPLETED
    return given


@pytest.mark.parametrize("kind", PROVIDERS)
async def test_no_provider_fails_a_task(kind: str) -> None:
    """Whatever an agent has set up, its turn ends well, and a request has a trace id."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    given = await run_traced(PROVIDERS[kind]())
    assert set(given) != {"0"}
    assert len(given) == 32


async def test_what_a_collector_does_not_take_does_not_grow() -> None:
    """Of three thousand spans in a turn 2,048 wait while an export hangs, and the turn does not."""
    let_go = threading.Event()

    def wait() -> SpanExportResult:
        let_go.wait(60)
        return SpanExportResult.SUCCESS

    exporter = Raising(wait)
    processor = BatchSpanProcessor(_Pausing(exporter))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans, "_FLUSH_S", 0.01)
        provider = with_processor(processor)
        await run_traced(provider)
    assert (exporter.asked, len(processor._batch_processor._queue)) == (1, MOST_WAITING)
    let_go.set()
    provider.shutdown()


def test_a_collector_that_is_away_is_one_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure nothing is sent for a minute; then it is tried again."""
    now = [1000.0]
    monkeypatch.setattr("a2a_serverless.observability.otel.time.monotonic", lambda: now[0])
    exporter = Raising()
    pausing = _Pausing(exporter)
    with logged() as lines:
        for _ in range(180):
            assert pausing.export([]) is SpanExportResult.FAILURE
            now[0] += 1
    assert exporter.asked == len(lines) == 3
    assert {line["action"] for line in lines} == {"spans_dropped"}
    assert "my secret" not in str(lines)


def test_an_invocation_waits_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an export that is late no invocation waits; one whose provider raises is no error."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
    monkeypatch.setattr(spans, "_export", spans._Export())
    let_go, begun, asked = threading.Event(), threading.Event(), []

    class Late(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            asked.append(timeout_millis)
            begun.set()
            return let_go.wait(60)

    with recorded() as seen:
        seen.provider.add_span_processor(Late())
        began = time.monotonic()
        for within_s in (0.01, 30, 30):
            with spans.span("attempt", {}):
                pass
            spans.flush(within_s)
        assert time.monotonic() - began < 30
        assert begun.wait(30)  # the export's thread may begin after the wait for it
    let_go.set()
    assert len(asked) == 1


HOSTILE: dict[str, list[tuple[bytes, bytes]]] = {
    "two traces": [(b"traceparent", PARENT.encode())] * 2,
    "no ASCII": [(b"traceparent", b"\xff\xfe"), (b"tracestate", b"\xe2\x82\xac=1")],
    "64 KB": [(b"traceparent", b"0" * 65_536), (b"tracestate", b"a=" + b"b" * 65_536)],
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_headers_fail_or_force_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile trace is as none, or is not recorded with a share of 0, whatever its flag says."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    settings = Settings(auth="none")
    app = create_app(settings, memory_backends(settings), storyteller())
    transport = httpx.ASGITransport(app)
    sent = [(b"A2A-Version", b"1.0"), *HOSTILE[kind]]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        with recorded() as seen:
            statuses = [
                (await http.request(method, "/tasks", headers=sent)).status_code
                for method in ("GET", "MY-SECRET")
            ]
            found = seen.take()
    assert statuses in ([200, 405], [431, 431])
    own = [span for span in found if span.name != "HTTP"]
    assert {span.name for span in own} <= {"ListTasks", "GET"}
    assert [span for span in found if ids_of(span)[0] == TRACE] == []
    assert "MY-SECRET" not in "".join(span.to_json() for span in found)


def test_a_provider_that_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that has set one of its own gets the spans."""
    taken = mock.Mock()
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    monkeypatch.setattr(trace, "set_tracer_provider", taken)
    set_up({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:9"})
    assert not taken.called
