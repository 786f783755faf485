"""The traces of tasks: which spans there are, below what, and linked to what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar
from unittest import mock
from uuid import uuid4

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.app import create_app
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
from tests.support.observed import ids_of, links_of, parent_of, recorded
from tests.support.workers import Bench, PacedClock, idle
from tests.unit.push.receivers import OK, Receiver, status
from tests.unit.push.world import stream_record

TRACE = "67891233abcdef012345678912345678"
CLIENTS: Any = {"traceparent": f"00-{TRACE}-53995c3f42cd8ad8-01", "tracestate": "a=b"}
TEXT = "Two days in Lisbon:"
SECRETS = ("my secret", "a quota", "Lisbon")

T = TypeVar("T")


class Author(Worker):
    """Does what the last word of a message says."""

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
    """The functions of a deployment on one table of dictionaries, called one at a time.

    Its public methods are the words of `SCENARIOS`.
    """

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

    async def say(
        self, word: str, *, hook: str = "", headers: Any = CLIENTS, **fields: Any
    ) -> None:
        """Send a message, without waiting for its turn."""
        configuration: dict[str, Any] = {"returnImmediately": True}
        if hook:
            configuration["taskPushNotificationConfig"] = {"url": hook}
        said = {"messageId": uuid4().hex, "text": f"{TEXT} {word}", **fields}
        sent = Client(self.http).send(configuration=configuration, headers=headers, **said)
        self.sent = (await sent).task

    async def say_again(self, word: str) -> None:
        await self.say(word, taskId=self.sent["id"], contextId=self.sent["contextId"])

    async def say_beside(self, word: str) -> None:
        """Send a message of the same conversation that names no trace."""
        await self.say(word, headers=None, contextId=self.sent["contextId"])

    async def post(self, path: str, word: str) -> None:
        """Send a message and wait for its turn."""
        body, headers = {"message": message(f"{TEXT} {word}")}, {"A2A-Version": "1.0", **CLIENTS}
        await asyncio.gather(self.http.post(path, json=body, headers=headers), self.run())

    async def say_unsent(self, word: str) -> None:
        """Send a message whose operation finds no queue."""
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
        """Run the next delivery to its end."""
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
        head = await self.storage.head(self.sent["id"])
        assert head is not None
        await self.storage.park(head, "share")

    async def wake(self) -> None:
        await self.adapter.shares.refill(1)

    async def lose(self) -> None:
        """Let the deliveries of the next operation run out."""
        letters = self.backends.dead_letters
        assert letters is not None
        await letters.send((await self.deliver()).message)

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
    for key, span in own.items():
        parent = parent_of(span)
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
