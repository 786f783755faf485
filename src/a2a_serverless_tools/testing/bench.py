"""A bench to test an agent on: messages in, tasks out, through the worker of production."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import urlencode

from a2a.helpers import get_text_parts
from a2a.server.agent_execution import AgentExecutor
from a2a.types import Message, Part, Role, SendMessageConfiguration, SendMessageRequest

from a2a_serverless.queues.fifo import send_copy
from a2a_serverless.settings import Settings
from a2a_serverless.storage.signals import signal
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import Caller, copied
from a2a_serverless.tasks.fold import LAST, Cursor, incarnation_tag
from a2a_serverless.tasks.head import ASLEEP, Head, Operation
from a2a_serverless.tasks.identity import Scope, new_id
from a2a_serverless.tasks.questions import ID_FIELD
from a2a_serverless.tasks.turns import turns_of
from a2a_serverless.tasks.waits import CALLBACK, FORM, Signal, open_waits
from a2a_serverless.wiring import memory_backends, queue_on
from a2a_serverless.worker.agents import executor_of, load_agent, what_is
from a2a_serverless.worker.context import Worker
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.operate.wording import iso
from a2a_serverless_tools.testing.agents import Called, StandIn
from a2a_serverless_tools.testing.clock import PacedClock
from a2a_serverless_tools.testing.everywhere import Conversation, Place, Play, compare, play
from a2a_serverless_tools.testing.process import KilledError, Points, Process, _found
from a2a_serverless_tools.testing.run import Run, Said, When, parts_of

AgentSource = str | Worker | AgentExecutor | Callable[[], Worker | AgentExecutor]
"""`FILE.py:NAME`, a class, a function that makes an agent, or an agent."""

ADDRESS: Final = "https://agent.example"
"""The address of the agent, unless its settings have another one."""
TIMEOUT_S: Final = 30.0
MOST_NAME: Final = 60
"""The most characters of a message that an error shows."""


class AgentBench:
    """Runs an agent on messages, with the worker of production, over storage and queue in memory.

    If `agent` is a name, a class or a function, each turn has a new agent, as on a Lambda that
    scaled. Anything that an agent keeps in memory by mistake is gone. If `agent` is an agent, it
    serves all turns.

    >>> with AgentBench("agent.py:agent") as bench:
    ...     run = bench.send("Two days in Lisbon")
    ...     assert run.state == "completed"

    Args:
        agent: where the agent comes from.
        folder: where a relative FILE.py is; None: the working directory.
        timeout_s: seconds of the machine's time that one turn may take, in all of its attempts.
        agents: functions in the place of the agents that it calls, by the names or URLs by which
            it calls them. Each gets a message and returns a text, or an `Outcome`.
        settings: settings of a deployment by their names in Settings, such as `max_attempts=1`.
    """

    def __init__(
        self,
        agent: AgentSource,
        *,
        folder: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        agents: Mapping[str, Called] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self._source = agent
        self._newer: AgentSource | None = None
        """The agent behind the next kill; None: the same."""
        self._folder = folder
        self._timeout_s = timeout_s
        self._given: dict[str, Any] = {"agents": agents, **settings}
        self._settings = Settings.model_validate({"public_url": ADDRESS, **settings})
        self.clock = PacedClock()
        """The clock of storage, queue and worker."""
        self.agents = {name: StandIn(name, each, self.clock) for name, each in agents.items()}
        """The stand-ins of the agents that it calls."""
        backends = memory_backends(self._settings, self.clock)
        self._queue = queue_on(
            backends.storage.table,
            Operation,
            self._settings,
            "queue",
            visibility_s=self._settings.visibility_s,
            clock=self.clock,
        )
        self._backends = replace(backends, operations=self._queue)
        self._processes = [self._new_process()]
        self._running: tuple[Head, Points] | None = None
        self._signals: dict[tuple[str, str], Signal] = {}
        """What is posted to callbacks, by the names and keys of their records."""
        self._play = Play()

    def send(  # noqa: PLR0913 - the fields of a message
        self,
        message: Said,
        *,
        to: Run | None = None,
        context_id: str = "",
        user: str = "",
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        accepts: Sequence[str] = (),
        extensions: Sequence[str] = (),
        cancel_after: When | None = None,
        kill_after: When | None = None,
    ) -> Run:
        """Send a message; return its task when its turn is over, after further attempts if needed.

        >>> run = bench.send("Two days in Lisbon", kill_after=1)
        >>> assert run.attempts == 2

        Args:
            message: a text, a part such as `file_part(…)`, or several.
            to: the task's last run, for its next turn; None opens a task.
            context_id: the conversation of a new task; empty: a new one.
            user: the sender; empty as on an endpoint without authentication.
            tenant: the tenant that the message is addressed to.
            metadata: the message's metadata.
            accepts: media types that the client accepts.
            extensions: URIs of the extensions that the request asks for.
            cancel_after: the point at which the client cancels; 0: before a worker has the turn.
            kill_after: the point at which the worker's process dies, with everything that it has in
                memory, such as `step("search")`. Another worker gets the turn when its message is
                visible again.

        Raises:
            TaskTerminalStateError, TaskNotAcceptingMessagesError: the task takes no message.
            TaskNotFoundError: the task is another user's.
            StuckError: the turn is not over in time.
        """
        agent, request = self._made(), _request(message, to, metadata, accepts)
        caller, scope = Caller(user, tenant, tuple(extensions)), Scope.of(tenant, user)
        engine = self._process.engine
        if to is None:
            context_id = context_id or new_id()
            opening = engine.open(request, context_id=context_id, caller=caller, scope=scope)
        else:
            opening = engine.go_on(to.head, request, caller=caller, scope=scope)
        head = self._process.run(opening)
        points = self._points(_named(request), cancel_after, kill_after)
        self._work(head, points, agent, cancels_first=cancel_after == 0)
        if points.is_late and not self._now(head).is_terminal:
            self._work(head, points, agent, cancels_first=True)
        return self._process.run(self._seen(head, points, caller))

    def answer(
        self, run: Run, said: Said | Mapping[str, Said] | None, *, kill_after: When | None = None
    ) -> Run:
        """Answer what a task has asked by `ctx.ask`; return it when its next turn is over.

        >>> run = bench.answer(bench.send("Pay it"), "from account b")
        >>> run = bench.answer(run, {"day": "Friday", "hour": "noon"})
        >>> late = bench.answer(bench.send("Book a table"), None)

        Args:
            run: the task's last run.
            said: the answer to all questions, or answers by the ids of their questions. None: there
                is no answer. Then the clock moves to the end of the time of the first one.
            kill_after: as for `send`.

        Raises:
            ValueError: None was given, and no question has a `timeout_s`.
        """
        if isinstance(said, Mapping):
            said = [part for name, one in said.items() for part in _parts_of(name, one)]
        if said is not None:
            return run.reply(said, kill_after=kill_after)
        due_at = self._now(run.head).due_at
        if due_at is None:
            raise ValueError("No question of the task has a `timeout_s`: it waits on.")
        self._process.run(self._wake(due_at))
        head, points = self._now(run.head), self._points("no answer", kill_after=kill_after)
        self._work(head, points, self._made(), cancels_first=False)
        return self._process.run(self._seen(head, points, Caller(run.user, run.tenant)))

    def signal(self, name: str, value: Any, *, key: str = "", form: bool = False) -> None:
        """Post to the callback of a name, once the next turn waits for it.

        >>> bench.signal("paid", {"amount": 7})
        >>> bench.signal("approval", {"decision": "approve"}, form=True)
        >>> run = bench.send("An invoice")

        Args:
            name: that of the callback.
            value: bytes are posted as they are, another value as JSON.
            key: that of the callback.
            form: post the fields in `value` as a browser's form does, such as the page's button.
        """
        if isinstance(value, bytes):
            given = Signal(value, "application/octet-stream")
        elif form:
            given = Signal(urlencode(value, doseq=True).encode(), FORM)
        else:
            given = Signal(json.dumps(value).encode(), "application/json")
        self._signals[f"{CALLBACK}{name}", key] = given

    async def _posts(self, head: Head) -> bool:
        """Post what a sleeping turn waits for; return True if there was something."""
        storage = self._process.engine.storage_of(head)
        log = _found(await storage.read(head.task_id))
        for step_id in open_waits(log):
            given = self._signals.pop((step_id.name, step_id.key), None)
            if given is not None:
                where, turn = (head.task_id, head.incarnation), head.turn.began_with
                await signal(storage, *where, turn=turn, step_id=step_id, given=given)
                await send_copy(self._queue, _found(await storage.head(head.task_id)))
                return True
        return False

    def cancel(self, run: Run) -> Run:
        """Cancel a task that waits for a message; return it as it is then.

        >>> assert bench.cancel(bench.send("Hello")).state == "canceled"

        Raises:
            TaskTerminalStateError: the task has ended.
        """
        head, points = self._now(run.head), self._points("a cancel")
        self._work(head, points, self._made(), cancels_first=True)
        return self._process.run(self._seen(head, points, Caller(run.user, run.tenant)))

    def cancel_running(self) -> None:
        """Ask to cancel the task whose turn runs; for a fake that the agent calls.

        The agent learns of it at a later `await`.

        >>> def search(words: str) -> list[str]:
        ...     bench.cancel_running()
        ...     return []

        Raises:
            RuntimeError: no turn runs.
        """
        if self._running is None:
            raise RuntimeError("No turn runs: call it in what the agent calls, such as a fake.")
        self._process.soon(self._ask())

    def kill_everywhere(
        self, conversation: Conversation, *, newer: AgentSource | None = None
    ) -> Run:
        """Play a conversation, then once with a kill behind each of its records, and compare.

        Return its last turn, without a kill. Each play has a bench of its own, such as this one.
        Records that are stored in one commit have one kill. What is compared are state, text and
        artifacts of each turn, and how often it has each record.

        >>> run = bench.kill_everywhere(["Pay the invoice", "from account b"])
        >>> assert run.state == "completed", run

        Args:
            conversation: a function that takes a bench, or the messages and answers of one task.
            newer: the agent of the next release, with which each play goes on behind its kill. It
                may say and ask something else, so that of its turns only failures are found, such
                as that of code which does not ask what the client has answered.

        Raises:
            AssertionError: a play differs; the sentence names the record and the difference.
            ValueError: the conversation records nothing.
        """
        plain = self._played(conversation, None)
        if not plain.places:
            raise ValueError(
                "The conversation has no records behind which to kill: write its work as steps,"
                " `await ctx.step(…)`."
            )
        compare(plain, self._played(conversation, None), is_newer=False)
        for place in plain.places:
            compare(plain, self._played(conversation, place, newer), is_newer=newer is not None)
        return plain.runs[-1]

    def _played(
        self, conversation: Conversation, dies_at: Place | None, newer: AgentSource | None = None
    ) -> Play:
        with AgentBench(
            self._source, folder=self._folder, timeout_s=self._timeout_s, **self._given
        ) as bench:
            bench._newer, bench._play = newer, Play(dies_at)
            play(conversation, bench)
            return bench._play

    def pass_time(self, seconds: float) -> None:
        """Let time pass between two turns.

        >>> bench.pass_time(86_400)
        """
        self._process.run(self.clock.pass_time(seconds))

    def close(self) -> None:
        """End the bench, as `with` does; cancel what the agent has left running.

        >>> bench.close()
        """
        for process in self._processes:
            process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _process(self) -> Process:
        return self._processes[-1]

    def _new_process(self) -> Process:
        return Process(self._backends, self._settings, self.clock, self.agents)

    def _made(self) -> AgentExecutor:
        source = self._source
        if isinstance(source, str):
            return load_agent(source, folder=self._folder)
        given = executor_of(source)
        if given is not None:
            return given
        made = source() if callable(source) else source
        agent = executor_of(made)
        if agent is None:
            raise TypeError(f"What was given as the agent is {what_is(made)}.")
        return agent

    def _points(
        self, name: str, cancel_after: When | None = None, kill_after: When | None = None
    ) -> Points:
        self._play.turns.append(name)
        return Points(
            name=name,
            timeout_s=self._timeout_s,
            ask_to_cancel=self._ask,
            dies_behind=self._play.dies,
            cancel_after=cancel_after,
            kill_after=kill_after,
        )

    async def _ask(self) -> None:
        """Ask to cancel the task of the present turn, once."""
        if self._running is None or self._running[1].is_asked:
            return
        head, points = self._running
        points.is_asked = True
        await self._process.engine.cancel(head)

    def _work(
        self, head: Head, points: Points, agent: AgentExecutor, *, cancels_first: bool
    ) -> None:
        """Work on a turn until the queue is empty and it does not sleep."""
        self._running = head, points
        self._process.turn(agent, points)
        try:
            if cancels_first:
                self._process.run(self._ask())
            while True:
                while self._process.run(self._queue.waiting()):
                    if points.attempts:
                        points.check_time("has ended, and another one follows")
                    self._deliver(points)
                now = self._now(head)
                if points.is_late or now.turn.parked != ASLEEP or now.due_at is None:
                    return
                points.check_time(f"sleeps until {iso(now.due_at)}")
                if bool(self._signals) and self._process.run(self._posts(now)):
                    continue
                self._process.run(self._wake(now.due_at))
        finally:
            self._running = None

    def _deliver(self, points: Points) -> None:
        try:
            self._process.run(self._process.work(points))
        except KilledError:
            self._source = self._newer or self._source
            self._processes.append(self._new_process())
            self._process.turn(self._made(), points)

    async def _wake(self, due_at: int) -> None:
        """Let time pass to the end of a sleep or of a question's time; then the sweeper looks."""
        await self.clock.pass_time((due_at - self.clock.now_ms() + 1) / 1000)
        await Sweeper(self._backends.storage, self._queue, clock=self.clock).sweep()

    def _now(self, head: Head) -> Head:
        return self._process.run(self._process.engine.head(head))

    async def _seen(self, head: Head, points: Points, caller: Caller) -> Run:
        """Return the task as it is now, with the events since `head`."""
        engine = self._process.engine
        cursor = Cursor(head.version, LAST, incarnation_tag(head.incarnation))
        storage, turn = engine.storage_of(head), head.next_turn or head.turn.number
        tail, _ = await Tail.resume(storage, head.task_id, cursor)
        told = tail.events(until=lambda _: True, deadline=math.inf)
        log = _found(await storage.read(head.task_id))
        (own,) = [one for one in turns_of(log.head, log.records) if one.version == turn]
        run = Run(
            task=await engine.task(head),
            events=tuple([one.event async for one in told]),
            attempts=points.attempts,
            steps=tuple(each.name for each in own.records),
            errors=tuple(points.errors),
            user=caller.user,
            tenant=caller.tenant,
            head=tail.head,
            bench=self,
        )
        self._play.runs.append(run)
        return run


def _parts_of(question: str, said: Said) -> list[Part]:
    """Return an answer's parts, which name its question."""
    parts = [copied(part) for part in _message(said).parts]
    for part in parts:
        part.metadata.update({ID_FIELD: question})
    return parts


def _request(
    said: Said, to: Run | None, metadata: Mapping[str, Any] | None, accepts: Sequence[str]
) -> SendMessageRequest:
    message = _message(said)
    message.message_id = message.message_id or str(uuid.uuid4())
    message.role = message.role or Role.ROLE_USER
    if to is not None:
        message.task_id, message.context_id = to.task.id, to.task.context_id
    if metadata:
        message.metadata.update(metadata)
    configuration = SendMessageConfiguration(accepted_output_modes=accepts)
    return SendMessageRequest(message=message, configuration=configuration)


def _named(request: SendMessageRequest) -> str:
    """Return a message as an error names it."""
    text = " ".join(get_text_parts(request.message.parts))
    return repr(shorten(text, MOST_NAME, placeholder="…")) if text else "a message without a text"


def _message(said: Said) -> Message:
    return copied(said) if isinstance(said, Message) else Message(parts=parts_of(said))
