"""Every interleaving of a conversation: workers, cancels, deaths and sweeps over its line.

The world is a few tasks of one conversation. What a worker, a process that cancels and a sweep do
is cut into their requests, between which anything else may happen. What they decide comes from
`tasks/conversation.py` and `tasks/attempts.py`; what a request writes is one step, as in a table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from a2a.types import TaskState

from a2a_serverless.tasks.attempts import Delivered, on_delivery
from a2a_serverless.tasks.conversation import First, Place, Started, on_first, on_start
from a2a_serverless.tasks.head import Head, Operation, OperationParams


class Turn(NamedTuple):
    """A task's one turn, as its HEAD has it, and its messages."""

    end: str = ""
    """`done` or `canceled`; empty: the turn is open."""
    is_left: bool = False
    sends: int = 0
    is_owed: bool = False
    """The turn was woken, and its copy is not sent."""
    copies: int = 1
    """Messages on the queue, with the one in flight."""
    in_flight: bool = False


class Process(NamedTuple):
    """A worker with a delivery, a process that has canceled a task, or a sweep."""

    kind: str
    task: int
    at: str
    seen: int = 0
    """The task whose place was the first when the line was read."""


class World(NamedTuple):
    """What is stored and queued, and who is at work."""

    turns: tuple[Turn, ...] = ()
    """Of the tasks whose messages were accepted, in that order."""
    line: tuple[int, ...] = ()
    processes: tuple[Process, ...] = ()
    ended: tuple[int, ...] = ()
    """The tasks that agents have answered, in that order."""
    messages: int = 0
    cancels: int = 0
    deaths: int = 0
    """How many may still come, as of messages and cancels."""

    @property
    def is_at_rest(self) -> bool:
        return not self.messages and all(turn.end for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What keeps the promises; each can be off."""

    line: bool = True
    """A turn runs only if its place is the first."""
    looks_again: bool = True
    """Who leaves a turn looks at the line afterwards."""
    passes_on: bool = True
    """Who ends a turn wakes the next one."""
    drops: bool = True
    """Places of ended turns are dropped when they are the first."""
    redelivery: bool = True
    """Who drops a message of a turn that has ended or is left passes on."""
    sweeps: bool = True
    """The sweeper passes on for each turn that is left, and sends what is owed."""
    conditional: bool = True
    """A place is dropped only if it is still the first."""


Step: TypeAlias = tuple[str, World]


@dataclass(frozen=True, slots=True)
class Report:
    """The number of states, and the first broken promise with the steps that lead there."""

    states: int
    broken: str = ""
    trace: tuple[str, ...] = ()


def explore(
    guards: Guards | None = None,
    *,
    accepted: int = 0,
    messages: int = 2,
    cancels: int = 0,
    deaths: int = 0,
) -> Report:
    """Visit every state; stop at the first broken promise.

    No two turns run at once; agents answer in the order of acceptance; from every state all turns
    can end without a further death. Without a death that takes no sweep. In the first state,
    `accepted` turns stand in line.
    """
    guards = guards or Guards()
    first = World(
        turns=(Turn(),) * accepted,
        line=tuple(range(accepted)),
        messages=messages,
        cancels=cancels,
        deaths=deaths,
    )
    if not deaths:
        guards = replace(guards, sweeps=False)
    came: dict[World, tuple[World | None, str]] = {first: (None, "")}
    before: dict[World, list[World]] = {first: []}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        if broken := _broken(world):
            return Report(len(came), broken, _trace(came, world))
        for name, after in _steps(world, guards):
            if not name.startswith("death"):
                before.setdefault(after, []).append(world)
            if after not in came:
                came[after] = (world, name)
                waiting.append(after)
    rests = [world for world in came if world.is_at_rest]
    ends, waiting = set(rests), deque(rests)
    while waiting:
        for world in before.get(waiting.popleft(), []):
            if world not in ends:
                ends.add(world)
                waiting.append(world)
    for world in came:
        if world not in ends:
            return Report(len(came), "a turn waits for ever", _trace(came, world))
    return Report(len(came))


def _broken(world: World) -> str:
    running = [p.task for p in world.processes if p.at == "run" and not world.turns[p.task].end]
    if len(running) > 1:
        return "two turns run at once"
    return "" if [*world.ended] == sorted(world.ended) else "answered out of order"


def _trace(came: dict[World, tuple[World | None, str]], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    at: World | None = world
    while at is not None:
        at, name = came[at]
        steps.append(name)
    return tuple(reversed(steps[:-1]))


@cache
def _head(task: int, turn: Turn) -> Head:
    state = TaskState.TASK_STATE_COMPLETED if turn.end else TaskState.TASK_STATE_SUBMITTED
    return Head(
        scope="scope",
        task_id=str(task),
        context_id="talk",
        incarnation="one",
        version=1,
        state=state,
        status_at=0,
        status=None,
        metadata=None,
        created_at=0,
        expires_at=10**15,
        turn=1,
        turn_base=1,
        finished_turn=int(bool(turn.end)),
        serial_from=1,
        sends=turn.sends,
        left="conversation" if turn.is_left else "",
    )


def _place(task: int) -> Place:
    return Place(str(task), "one", 1)


def _steps(world: World, guards: Guards) -> Iterator[Step]:
    if world.messages:
        task = len(world.turns)
        turns, line = (*world.turns, Turn()), (*world.line, task)
        left = world.messages - 1
        yield f"{task} is accepted", world._replace(turns=turns, line=line, messages=left)
    for task, turn in enumerate(world.turns):
        yield from _of_task(world, task, turn, guards)
    for process in world.processes:
        rest = _without(world, process)
        yield from _of_process(rest, process, guards)
        if world.deaths:
            after = rest._replace(deaths=world.deaths - 1)
            if process.kind == "worker":  # its message is visible again
                after = _turn(after, process.task, in_flight=False)
            yield f"death of the {process.kind} of {process.task}", after


def _of_task(world: World, task: int, turn: Turn, guards: Guards) -> Iterator[Step]:
    if turn.copies and not turn.in_flight:
        received = _turn(world, task, in_flight=True)
        yield f"{task} is received", _with(received, Process("worker", task, "read"))
    if world.cancels and not turn.end:
        after = world._replace(cancels=world.cancels - 1)
        yield f"{task} is canceled", _ended(after, Process("cancel", task, ""), "canceled", guards)
    is_sweeping = any(process.kind == "sweep" for process in world.processes)
    if guards.sweeps and not is_sweeping and not turn.end:
        if turn.is_left:
            yield f"sweep of {task}", _with(world, Process("sweep", task, "line"))
        if turn.is_owed and not any(p.at == "send" and p.seen == task for p in world.processes):
            sent = _turn(world, task, is_owed=False, copies=turn.copies + 1)
            yield f"sweep sends {task}", sent


def _of_process(world: World, process: Process, guards: Guards) -> Iterator[Step]:
    """Yield what a process does next; `world` is without it."""
    name = f"{process.kind} of {process.task}: {process.at}"
    if process.at in ("line", "head", "drop", "wake", "send"):
        yield _passing_on(world, process, name, guards)
    else:
        yield _at_work(world, process, name, guards)


def _at_work(world: World, process: Process, name: str, guards: Guards) -> Step:
    """Return what a worker does next with its delivery."""
    task, turn = process.task, world.turns[process.task]
    match process.at:
        case "read":
            params = OperationParams.of(_head(task, turn), 1)
            wanted = on_delivery(_head(task, turn), Operation.to_run(params), receives=2)
            at = "start" if wanted is Delivered.CLAIM else "line" if guards.redelivery else "ack"
            return name, _with(world, process._replace(at=at))
        case "start":
            places = [_place(each) for each in world.line]
            started = on_start(_head(task, turn), places)
            runs = started is Started.RUN or not guards.line
            after = process._replace(at="run" if runs else "leave")
            return f"{name} {started.value}", _with(world, after)
        case "leave":
            if turn.end or turn.is_left:
                return f"{name} refused", _turn(world, task, in_flight=False)
            at = "line" if guards.looks_again else "ack"
            return name, _with(_turn(world, task, is_left=True), process._replace(at=at))
        case "run" if turn.end:
            return f"{name} fenced", _with(world, process._replace(at="ack"))
        case "run":
            answered = world._replace(ended=(*world.ended, task))
            return name, _ended(answered, process, "done", guards)
        case _:
            return name, _turn(world, task, copies=turn.copies - 1, in_flight=False)


def _passing_on(world: World, process: Process, name: str, guards: Guards) -> Step:
    """Return what any process does next with the line."""
    seen = process.seen
    match process.at:
        case "line" if not world.line:
            return name, _over(world, process)
        case "line":
            return name, _with(world, process._replace(at="head", seen=world.line[0]))
        case "head":
            first = on_first(
                _head(seen, world.turns[seen]),
                _place(seen),
                since=0,
                waiting=1,
                now_ms=0,
                hold_s=1,
            )
            if first is First.STAYS or (first is First.DROP and not guards.drops):
                return name, _over(world, process)
            return f"{name} {seen}", _with(world, process._replace(at=first.value))
        case "drop":
            is_first = world.line[:1] == (seen,) or not guards.conditional
            line = world.line[1:] if is_first else world.line
            return f"{name} {seen}", _with(world._replace(line=line), process._replace(at="line"))
        case "wake":
            woken = world.turns[seen]
            if woken.end or not woken.is_left:
                return f"{name} {seen} refused", _with(world, process._replace(at="line"))
            woken_world = _turn(world, seen, is_left=False, sends=woken.sends + 1, is_owed=True)
            return f"{name} {seen}", _with(woken_world, process._replace(at="send"))
        case _:
            copies = world.turns[seen].copies + 1
            return f"{name} {seen}", _over(
                _turn(world, seen, is_owed=False, copies=copies), process
            )


def _ended(world: World, process: Process, end: str, guards: Guards) -> World:
    """Return the world after a commit that ends a turn, and gives up its place if it is first."""
    task, is_alone = process.task, world.line == (process.task,)
    line = world.line[1:] if world.line[:1] == (task,) else world.line
    after = _turn(world._replace(line=line), task, end=end, is_left=False)
    if is_alone or not guards.passes_on:
        return _over(after, process)
    return _with(after, process._replace(at="line"))


def _over(world: World, process: Process) -> World:
    """Return the world after a process has passed on: a worker acknowledges, others are done."""
    return _with(world, process._replace(at="ack", seen=0)) if process.kind == "worker" else world


def _turn(world: World, task: int, **changes: Any) -> World:
    turns = list(world.turns)
    turns[task] = turns[task]._replace(**changes)
    return world._replace(turns=tuple(turns))


def _with(world: World, process: Process) -> World:
    processes = sorted((*world.processes, process))
    return world._replace(processes=tuple(processes))


def _without(world: World, process: Process) -> World:
    processes = list(world.processes)
    processes.remove(process)
    return world._replace(processes=tuple(processes))
