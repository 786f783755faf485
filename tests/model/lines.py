"""Every interleaving of turns that stand in line: for their conversation, or for a share.

The world is a few messages. Intake, workers, the sweeper, cancels and deletions run the project's
own code (`tests/model/programs.py`), one request a step. Only a worker's delivery is told again, in
short: with the requests of `worker/adapter.py` in their order, and an agent that completes. All is
due for a sweep at any time. Indexes may lag: each entry is shown when it may be, a step of its own.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

from a2a.types import Message, Part, SendMessageRequest, TaskState, TaskStatus

from a2a_serverless import errors
from a2a_serverless.queues.fifo import FifoQueue, send_copy
from a2a_serverless.storage import layout
from a2a_serverless.storage.conversation import conversation_queue, join_queue, start_next_turn
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage, Observer
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.table import Item, Key
from a2a_serverless.tasks.attempts import DeliveryDecision, may_park, on_delivery
from a2a_serverless.tasks.conversation import StartDecision, on_start
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.shares import Admission, Shares
from a2a_serverless.worker.sweeper import Sweeper
from tests.model.programs import (
    NOW_MS,
    Desk,
    ModelClock,
    ModelHandle,
    ModelQueue,
    ModelTable,
    Next,
    Process,
    Request,
    Stage,
    Stored,
    explored,
    in_order,
    marked,
)
from tests.model.search import Report, Step

DUE_MS = NOW_MS + 1_000
"""When all turns are due: workers come before, sweeps after."""
LATER_MS = 3_600_000
MOST_SENDS = 5
"""Copies of a turn after which no sweep comes: more would show that none of them helps."""
ENDED = (errors.TurnFinishedError, errors.TaskNotFoundError, errors.TaskTerminalStateError)
COMPLETED = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED), archive=True)


# -- programs --------------------------------------------------------------------------------


class Delivery(NamedTuple):
    """A message that was received so often. The caller is the first letter of the task's id."""

    task: str
    copy: int
    receives: int

    @property
    def token(self) -> str:
        return f"{self.task}.{self.copy}.{self.receives}"


class Office:
    """What the program of a process has."""

    def __init__(self, desk: Desk, task: str = "a", *, is_serial: bool = False) -> None:
        self.queue = cast("FifoQueue[Operation]", ModelQueue(desk))
        self.clock = ModelClock(desk)
        observer = Observer(send=partial(send_copy, self.queue))
        options: dict[str, Any] = {"clock": self.clock, "observer": observer}
        options |= {"scope": Scope.of("", task[0]), "is_serial": is_serial}
        self.storage = DurableStorage(ModelTable(desk), **options)
        self.shares = Shares(self.storage, self.queue, self.clock, chance=lambda: 0.5)


@cache
def operation_of(task: str, copy: int) -> Operation:
    scope = Scope.of("", task[0]).digest
    params = OperationParams(scope=scope, task_id=task, incarnation="one", turn=1, copy_number=copy)
    return Operation.to_run(params)


def _handle(desk: Desk, delivery: Delivery) -> ModelHandle:
    operation = operation_of(delivery.task, delivery.copy)
    return ModelHandle(desk, operation, delivery.receives)


async def intake(desk: Desk, task: str, is_serial: bool) -> None:
    """Accept a message, and send its operation."""
    office = Office(desk, task, is_serial=is_serial)
    request = SendMessageRequest(message=Message(message_id=task, parts=[Part(text="x")]))
    opened = await office.storage.open_task("talk", request, task_id=task)
    await office.queue.send(Operation.to_run(OperationParams.of(opened.head, 1)))


async def worker(desk: Desk, delivery: Delivery, is_late: bool) -> Next:
    """Do what a delivery asks for; a turn starts in the next program, if its HEAD may be left."""
    office, handle = Office(desk, delivery.task), _handle(desk, delivery)
    storage = office.storage
    head = await storage.head(delivery.task)
    wanted = on_delivery(head, handle.message, receives=delivery.receives)
    is_done = True
    if head is None or wanted is DeliveryDecision.DROP:
        if head is not None and head.serial_from:
            await start_next_turn(storage, head.context_id)
    elif wanted is DeliveryDecision.CANCEL:
        await cancel_task(storage, head)
    elif await _starts(storage, head) is StartDecision.RUN:
        return Next("share", (delivery, head, wanted is DeliveryDecision.CLAIM, is_late))
    else:
        is_done = await storage.park(head, "conversation") is not None
        if is_done:
            await start_next_turn(storage, head.context_id)
    return Next("close", (delivery, is_done, head is not None and head.turn.has_share))


async def _starts(storage: DurableStorage, head: Head) -> StartDecision:
    if not head.is_serial:
        return StartDecision.RUN
    started = on_start(head, (await conversation_queue(storage, head.context_id)).positions)
    if started is StartDecision.JOIN:
        return on_start(head, (await join_queue(storage, head)).positions)
    return started


async def share(desk: Desk, delivery: Delivery, head: Head, claims: bool, is_late: bool) -> Next:
    """Take a share, or leave the turn; claim it, and do what its start asks for."""
    office, handle = Office(desk, delivery.task), _handle(desk, delivery)
    shares, may_be = office.shares, is_late and may_park(head, handle.message.params)
    admitted = await shares.admits(handle, head) if may_be else Admission(head)
    if admitted.instead is not None:
        await handle.ack()
        params = admitted.instead.message.params
        instead = Delivery(params.task_id, params.copy_number, admitted.instead.attempt)
        return Next("worker", (instead, is_late))
    if admitted.head is None:
        return Next("close", (delivery, True, shares.line_stands))
    is_sign = may_be and admitted.head == head and head.turn.token is None
    head, claims = admitted.head, claims or admitted.head.turn.has_share
    if claims:
        claim = Commit(claims=True, token=delivery.token, commit_id=delivery.token)
        try:
            head = await office.storage.commit(head, claim)
        except (*ENDED, errors.ConcurrencyError) as error:
            return Next("close", (delivery, isinstance(error, ENDED), head.turn.has_share))
    if head.turn.has_share or is_sign:
        await shares.beside(handle, asyncio.Event(), is_late=is_sign)
    return Next("agent", (delivery, head, claims, head.turn.has_share or shares.line_stands))


async def agent(
    desk: Desk, delivery: Delivery, head: Head, is_claimed: bool, refills: bool
) -> Next:
    """Run the agent, and end the turn."""
    await desk.ask("run", delivery.task)
    token, is_done = delivery.token, True
    end = Commit(entries=(COMPLETED,), token=token, claims=not is_claimed, commit_id=token)
    try:
        await Office(desk, delivery.task).storage.commit(head, end)
    except (*ENDED, errors.ConcurrencyError) as error:
        is_done = isinstance(error, ENDED)
    return Next("close", (delivery, is_done, refills))


async def close(desk: Desk, delivery: Delivery, is_done: bool, refills: bool) -> None:
    """Acknowledge or give back, and wake a turn where the chain of wakes may be cut."""
    handle = _handle(desk, delivery)
    await (handle.ack() if is_done else handle.nack())
    if refills:
        await Office(desk, delivery.task).shares.refill(1)


async def sweeper(desk: Desk) -> None:
    office = Office(desk)
    await Sweeper(office.storage, office.queue, clock=ModelClock(desk, LATER_MS)).sweep()


async def cancel(desk: Desk, task: str) -> Next | None:
    with suppress(*ENDED):
        await Office(desk, task).storage.request_cancel(task)
        return Next("force", (task,))
    return None


async def force(desk: Desk, task: str) -> None:
    """End a task once the time of its cancel is over."""
    storage = Office(desk, task).storage
    if (head := await storage.head(task)) is not None:
        await cancel_task(storage, head)


async def deletion(desk: Desk, task: str) -> None:
    await delete_task(Office(desk, task).storage, task)


# -- the world -------------------------------------------------------------------------------


class Queued(NamedTuple):
    """A message; `holder` is the process that has received it."""

    task: str
    copy: int
    receives: int = 0
    holder: str = ""


class State(NamedTuple):
    """What is stored, shown and queued, and who is at work."""

    items: tuple[Stored, ...] = ()
    shown: tuple[Stored, ...] = ()
    queue: tuple[Queued, ...] = ()
    sent: frozenset[tuple[str, int]] = frozenset()
    processes: tuple[Process, ...] = ()
    messages: int = 0
    """How many have come."""
    cancels: int = 0
    deletions: int = 0
    deaths: int = 0
    hasty: int = 0
    """How many may still come, as of sweeps while others are at work."""
    ran: tuple[str, ...] = ()
    """The tasks whose agents have run."""
    answered: tuple[str, ...] = ()
    """The tasks that have completed, in that order."""

    @property
    def open(self) -> list[Head]:
        """HEAD of each task whose turn has not ended."""
        return [head for head in self.heads if head.turn.is_open and head.expires_at > NOW_MS]

    @property
    def heads(self) -> list[Head]:
        return [one.head for one in self.items if one.head is not None]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One small world."""

    callers: str = "aa"
    """Who sends each message: a letter."""
    is_serial: bool = False
    accepted: int = 0
    """Messages that are on the queue at first."""
    places: int = 2
    cancels: int = 0
    deletions: int = 0
    deaths: int = 0
    hasty: int = 0
    sweeps: bool = True
    is_late: bool = True
    """Each delivery has waited for long: turns stand in line for a share."""
    lags: bool = False
    """Indexes show a write late; otherwise at once."""

    def explore(self) -> Report:
        """Visit every state; see `Game.explore`.

        No turn runs twice, unless a process has died; in a conversation one turn runs at a time,
        and they are answered in order; what has ended has no share; from every state all turns can
        end without a further death.
        """
        return explored(lambda: _World(self), _SAME)


_SAME = (
    ("a2a_serverless.storage.durable.new_incarnation", lambda: "one"),
    ("a2a_serverless.storage.deletion.new_incarnation", lambda: "fence"),
    ("a2a_serverless.storage.changes.marked", marked),
    ("a2a_serverless.storage.durable.marked", marked),
    ("a2a_serverless.storage.endings.stated", lambda _, state, __: TaskStatus(state=state)),
    ("a2a_serverless.worker.shares.PROOF", 1),  # a poll of the model brings all that there is
    ("a2a_serverless.worker.sweeper._MOST_CALLERS", 0),  # who sent a message is in the log
)
"""What is random otherwise, and what is read of the log, which this world does not keep."""

_SHOWN = ("PK", "SK", "line_key", "line_at", "due_key", "due_at", "expires_at")
"""What the indexes by line and by due time have of HEAD."""


class _World(Stage[State]):
    keeps_log = False
    stuck = "a turn waits for ever"

    def __init__(self, lines: Lines) -> None:
        super().__init__((intake, worker, share, agent, close, sweeper, cancel, force, deletion))
        self._lines = lines

    def first(self) -> State:
        lines = self._lines
        budget = {name: getattr(lines, name) for name in ("cancels", "deletions", "deaths")}
        state = State(hasty=lines.hasty, **budget)
        for _ in range(lines.accepted):
            state = self._accept(state)
            while state.processes:
                state = self.step(state, state.processes[0])
        return state._replace(shown=self._projected(state.items))

    def wrong(self, state: State) -> str:
        asked = (self.programs.request(process) for process in state.processes)
        running = [one.about for one in asked if isinstance(one, Request) and one.kind == "run"]
        at_once = [head.task_id for head in state.open for task in running if task == head.task_id]
        is_serial, died = self._lines.is_serial, self._lines.deaths - state.deaths
        if len(at_once) > (1 if is_serial else len(set(at_once))):
            return "two turns run at once"
        if is_serial and [*state.answered] != sorted(state.answered):
            return "answered out of order"
        if len(state.ran) > len(set(state.ran)) + died:
            return "a turn runs twice"
        for one in state.items:
            if one.head is not None and not one.head.turn.is_open and "line_key" in one.item:
                return "what has ended keeps its share"
            if one.head is not None and one.head.turn.requeued > 1 + died + is_serial:
                return "a turn stands in line again and again"
        return ""

    def rests(self, state: State) -> bool:
        return not (state.processes or state.queue or state.open)

    def shown(self, state: State) -> str:
        told = []
        for head in state.heads:
            stands = head.turn.parked or "woken" * head.turn.has_share
            words = (head.task_id, stands, "" if head.turn.is_open else "over")
            told.append(" ".join(filter(None, words)))
        queue = " ".join(f"{m.task}.{m.copy}{'*' * bool(m.holder)}" for m in state.queue)
        return f"{', '.join(told)}; queue: {queue}"

    # -- steps ---------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        if state.messages < len(self._lines.callers):
            yield "a message comes", self._accept(state), False
        yield from self._deliveries(state)
        for process in state.processes:
            told = _told(self.programs.request(process))
            yield f"{process.name}: {told}", self.step(state, process), True
            if state.deaths:
                dead = self.gone(state._replace(deaths=state.deaths - 1), process)
                yield f"{process.name} dies before: {told}", dead, False
        if self._lines.lags:
            for old, new in _differing(state.shown, self._projected(state.items)):
                shown = tuple(one for one in (*state.shown, new) if one and one is not old)
                yield "an index shows it", state._replace(shown=in_order(shown)), True
        yield from self._sweeps(state)
        for task in (head.task_id for head in state.open):
            for kind in ("cancel", "deletion"):
                if left := getattr(state, f"{kind}s"):
                    begun = state._replace(**{f"{kind}s": left - 1})
                    process = Process(f"{kind} of {task}", kind, (task,))
                    yield f"{process.name} comes", self.begun(begun, process), False

    def _accept(self, state: State) -> State:
        task = f"{self._lines.callers[state.messages]}{state.messages}"
        process = Process(f"intake of {task}", "intake", (task, self._lines.is_serial))
        begun = self.begun(state._replace(messages=state.messages + 1), process)
        return self.step(begun, process)

    def _deliveries(self, state: State) -> Iterator[Step[State]]:
        working = sum(process.name.startswith("worker") for process in state.processes)
        for message in _visible(state) if working < self._lines.places else ():
            delivery = Delivery(message.task, message.copy, message.receives + 1)
            given = (delivery, self._lines.is_late)
            process = Process(f"worker of {delivery.token}", "worker", given)
            received = _received(state, [message], process)
            yield f"{process.name} begins", self.begun(received, process), True

    def _sweeps(self, state: State) -> Iterator[Step[State]]:
        is_swept = any(process.program == "sweeper" for process in state.processes)
        if not self._lines.sweeps or is_swept or not state.open:
            return
        is_needed = not (state.processes or state.queue)
        if max(h.turn.sends for h in state.open) < MOST_SENDS and (is_needed or state.hasty):
            begun = state if is_needed else state._replace(hasty=state.hasty - 1)
            yield "a sweep begins", self.begun(begun, Process("sweep", "sweeper", ())), is_needed

    def is_at_once(self, request: Request) -> bool:
        """Whether nothing comes in between.

        A writer that was refused asks the log, which is not stored here, whether it has written
        after all.
        """
        is_of_log = request.kind == "load" and request.about[0].SK.startswith(layout.EVENTS)
        return request.kind in ("look", "query") or is_of_log

    def answer(self, state: State, process: Process, request: Request) -> tuple[Any, Any, State]:
        about = request.about
        match request.kind:
            case "look":
                return state.shown, self.table(state.shown), state
            case "pull":
                pulled = tuple(_visible(state))
                answer = [(operation_of(m.task, m.copy), m.receives + 1) for m in pulled]
                return pulled, answer, _received(state, pulled, process)
            case "run":
                return (), None, state._replace(ran=tuple(sorted((*state.ran, about))))
            case "sleep" if not self._lines.sweeps:  # it is long enough for all indexes
                return (), None, state._replace(shown=self._projected(state.items))
            case "send" | "ack" | "nack":
                return (), None, _queued(state, process, request)
        key, answer, after = super().answer(state, process, request)
        return key, answer, self._noted(state, after)

    def _noted(self, before: State, after: State) -> State:
        """The state after a write, with what the indexes show, and who has been answered."""
        if after.items is before.items:
            return after
        done = [
            [h.task_id for h in state.heads if h.state == COMPLETED.status.state]
            for state in (before, after)
        ]
        answered = (*before.answered, *(task for task in done[1] if task not in done[0]))
        shown = before.shown if self._lines.lags else self._projected(after.items)
        return after._replace(shown=shown, answered=answered)

    def kept(self, item: Item) -> Stored:
        return super().kept({**item, "due_at": DUE_MS} if "due_at" in item else item)

    def gone(self, state: State, process: Process) -> State:
        """The state without a process; what it has received and not acknowledged comes again."""
        free = [m._replace(holder="") if m.holder == process.name else m for m in state.queue]
        return super().gone(state._replace(queue=tuple(free)), process)

    def _projected(self, items: Iterable[Stored]) -> tuple[Stored, ...]:
        heads = [one.item for one in items if one.key.SK == layout.HEAD]
        return tuple(self.kept({n: head[n] for n in _SHOWN if n in head}) for head in heads)


def _visible(state: State) -> Iterator[Queued]:
    """Yield the first message of each group of which none is received."""
    met = {message.task for message in state.queue if message.holder}
    for message in state.queue:
        if message.task not in met:
            met.add(message.task)
            yield message


def _received(state: State, messages: Iterable[Queued], process: Process) -> State:
    own = {m: m._replace(receives=m.receives + 1, holder=process.name) for m in messages}
    return state._replace(queue=tuple(own.get(m, m) for m in state.queue))


def _queued(state: State, process: Process, request: Request) -> State:
    """The state after a send, or after the end of a delivery, unless that has expired."""
    params = request.about.params
    number = (params.task_id, params.copy_number)
    if request.kind == "send":
        queue = state.queue if number in state.sent else (*state.queue, Queued(*number))
        return state._replace(queue=queue, sent=state.sent | {number})
    own = [m for m in state.queue if (m.task, m.copy, m.holder) == (*number, process.name)]
    ended = [m._replace(holder="") for m in own] if request.kind == "nack" else []
    return state._replace(queue=(*ended, *(m for m in state.queue if m not in own)))


def _differing(
    shown: tuple[Stored, ...], stored: tuple[Stored, ...]
) -> Iterator[tuple[Stored | None, Stored | None]]:
    """Yield what an index shows of an item, and what it is to show."""
    old, new = ({one.key: one for one in each} for each in (shown, stored))
    for key in {**old, **new}:
        if old.get(key) is not new.get(key):
            yield old.get(key), new.get(key)


def _told(request: Request | Next | None) -> str:
    assert isinstance(request, Request)
    match request.kind:
        case "write" | "load":
            keys = [one if isinstance(one, Key) else one.key for one in request.about]
            names = [f"{key.SK} of {key.PK[-2:]}" for key in keys if key.SK in ("HEAD", "LINE")]
            return f"{request.kind}s {', '.join(names)}"
        case "send" | "ack" | "nack":
            params = request.about.params
            return f"{request.kind}s {params.task_id}.{params.copy_number}"
    return request.kind
