"""The project's own coroutines as processes of a model, which are halted before each request.

A process is its program and the answers that it has been given: run from its beginning on these
answers, the program comes to its next request. So whatever the code does, decides and remembers
between two requests is what it does in production, and anything else may happen in between. Only
what a process does at once (`gather`) is done one after the other.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from unittest import mock

from a2a_serverless.errors import ConditionFailedError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.storage.codec import head_of
from a2a_serverless.storage.dictionaries import MemoryTable, part_of
from a2a_serverless.storage.layout import EVENTS, HEAD, INDEXES
from a2a_serverless.storage.table import Item, Key, Range, Table, Watch, Write, outcome
from a2a_serverless.tasks.head import Head, Operation
from tests.model.search import SPINS, Game, Report, Step

NOW_MS = 1_800_000_000_000
SENT_MS = NOW_MS - 5_000
"""When all messages were sent: each delivery comes late."""
MOST_ALIKE = 100
"""How often a process may be given one answer, such as that an item is written. Its answers are all
that it knows: one that goes round without changing anything gets the same ones without an end."""


class Request(NamedTuple):
    """What a process asks for: of the table, of the queue, or to run its agent."""

    kind: str
    about: Any = None


class Stored:
    """An item. Equal items are one object, so that states hash quickly."""

    __slots__ = ("head", "item", "key")

    def __init__(self, item: Item) -> None:
        self.item, self.key = item, Key(item["PK"], item["SK"])
        self.head = head_of(item) if self.key.SK == HEAD and "state" in item else None


def in_order(items: Iterable[Stored]) -> tuple[Stored, ...]:
    """Items as states have them."""
    return tuple(sorted(items, key=lambda one: one.key))


class Refused(NamedTuple):
    """The answer to a transaction whose conditions have failed."""

    items: dict[int, Item | None]


class Timed(NamedTuple):
    """An answer, and the time at which it was given."""

    answer: Any
    now_ms: int


class Process(NamedTuple):
    """A process at work."""

    name: str
    program: str
    arguments: tuple[Any, ...]
    answers: tuple[int, ...] = ()


class Next(NamedTuple):
    """What a process goes on with: of all that it knows, the arguments matter from here on."""

    program: str
    arguments: tuple[Any, ...]


Program: TypeAlias = Callable[..., Coroutine[Any, Any, Next | None]]


class Desk:
    """What a program asks: it is answered with what is known, and halted at what is not."""

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = iter(answers)
        self.request: Request | None = None
        self.is_over = False
        self.now_ms = NOW_MS

    async def ask(self, kind: str, about: Any = None) -> Any:
        if self.is_over:
            raise asyncio.CancelledError
        for given in self._answers:
            answer = given
            if isinstance(given, Timed):
                answer, self.now_ms = given
            if isinstance(answer, Refused):
                raise ConditionFailedError(answer.items)
            return answer
        self.request = self.request or Request(kind, about)
        return await asyncio.get_running_loop().create_future()


class ModelClock:
    """A clock that stands still between two requests; a sleep is a step."""

    def __init__(self, desk: Desk, later_ms: int = 0) -> None:
        self._desk = desk
        self._later_ms = later_ms

    def now_ms(self) -> int:
        return self._desk.now_ms + self._later_ms

    def monotonic(self) -> float:
        return 0

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._desk.ask("sleep")


class ModelTable(Table):
    """Each request is asked for. All indexes are seen at one moment, until the next request."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shown: MemoryTable | None = None

    async def _ask(self, kind: str, about: Any) -> Any:
        self._shown = None
        return await self._desk.ask(kind, about)

    async def _seen(self, wanted: Range) -> MemoryTable:
        if wanted.index and self._shown is None:
            self._shown = await self._desk.ask("look")
        return self._shown if wanted.index and self._shown else await self._ask("query", wanted)

    async def load(
        self, keys: Iterable[Key], *, only: Sequence[str] = (), **_: bool
    ) -> dict[Key, Item | None]:
        asked = tuple(keys)
        found = await self._ask("load", asked) if asked else {}
        return part_of(found, only)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        async for page in (await self._seen(wanted)).query(wanted):
            yield page

    async def write(self, *writes: Write, **_: bool) -> None:
        await self._ask("write", writes)

    def watch(self, partition: str) -> AbstractContextManager[Watch]:
        raise NotImplementedError


class ModelHandle(Handle[Operation]):
    """A delivery: the operation, and how often it was received."""

    def __init__(self, desk: Desk, message: Operation, attempt: int) -> None:
        self.message, self.attempt, self.sent_at = message, attempt, SENT_MS
        self._desk = desk

    async def ack(self) -> None:
        await self._desk.ask("ack", self.message)

    async def nack(self, *, delay_s: float = 0) -> None:
        del delay_s
        await self._desk.ask("nack", self.message)

    async def extend(self, lease_s: float) -> None:
        del lease_s


class ModelQueue:
    """A queue, as far as the programs use one."""

    name = system = "model"

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def send(self, message: Operation) -> None:
        await self._desk.ask("send", message)

    async def send_all(self, messages: Sequence[Operation]) -> list[None]:
        for message in messages:
            await self.send(message)
        return [None for _ in messages]

    async def pull(self, limit: int, wait_s: float) -> list[Handle[Operation]]:
        del limit, wait_s
        pulled = await self._desk.ask("pull")
        return [ModelHandle(self._desk, message, attempt) for message, attempt in pulled]


class _Loud(logging.Handler):
    """The code logs errors and goes on: here there are no outages, so they are errors of a test."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            raise SystemError(record.getMessage()) from record.exc_info[1]


class Programs:
    """Knows the next request of every process; each is run once."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._programs = {program.__name__: program for program in programs}
        self._next: dict[Process, Request | Next | None] = {}
        self._answers: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._loop = asyncio.new_event_loop()

    def answered(self, process: Process, key: Any, answer: Any) -> Process:
        """The process after an answer, which `key` tells from others."""
        if key not in self._numbers:
            self._numbers[key] = len(self._answers)
            self._answers.append(answer)
        return process._replace(answers=(*process.answers, self._numbers[key]))

    def request(self, process: Process) -> Request | Next | None:
        """What a process asks for, or goes on with; None: it has ended."""
        if process not in self._next:
            self._next[process] = self._run(process)
        return self._next[process]

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _run(self, process: Process) -> Request | Next | None:
        desk = Desk(self._answers[number] for number in process.answers)
        loop, log, loud = self._loop, logging.getLogger("a2a_serverless"), _Loud(logging.WARNING)
        program = self._programs[process.program](desk, *process.arguments)
        log.addHandler(loud)
        try:
            task = loop.create_task(program)
            while desk.request is None and not task.done():
                loop.call_soon(loop.stop)
                loop.run_forever()
            if desk.request is None:
                return task.result()
            desk.is_over = True
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        finally:
            log.removeHandler(loud)
        return desk.request


class Scene(Protocol):
    """What a state has, whatever else it has: what is stored, and who is at work."""

    def __hash__(self) -> int: ...

    @property
    def items(self) -> tuple[Stored, ...]: ...

    @property
    def processes(self) -> tuple[Process, ...]: ...


S = TypeVar("S", bound=Scene)


def changed(state: S, **changes: Any) -> S:
    """The state, a named tuple, with other values."""
    return cast("S", cast("Any", state)._replace(**changes))


class Stage(Generic[S]):
    """Processes at one table: a request is answered in one step, and then its process goes on."""

    keeps_log: ClassVar[bool] = True
    stuck: ClassVar[str]
    """What `Game` says if nothing leads to rest, and so with the methods."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self.programs = Programs(programs)
        self._stored: dict[str, Stored] = {}
        self._tables: dict[tuple[Stored, ...], MemoryTable] = {}

    def broken(self, state: S) -> str:
        """The promise that a state breaks: that of all worlds, or one of this one."""
        for process in state.processes:
            if process.answers and process.answers.count(process.answers[-1]) > MOST_ALIKE:
                return SPINS
        return self.wrong(state)

    def first(self) -> S:
        raise NotImplementedError

    def steps(self, state: S) -> Iterable[Step[S]]:
        raise NotImplementedError

    def wrong(self, state: S) -> str:
        raise NotImplementedError

    def rests(self, state: S) -> bool:
        raise NotImplementedError

    def shown(self, state: S) -> str:
        raise NotImplementedError

    def begun(self, state: S, process: Process) -> S:
        """The state with a process more, which is halted before its first request."""
        return self._going(with_process(state, process, process), process)

    def step(self, state: S, process: Process) -> S:
        request = self.programs.request(process)
        assert isinstance(request, Request)
        key, answer, after = self.answer(state, process, request)
        return self.going_on(after, process, (request.kind, key), answer)

    def going_on(self, state: S, process: Process, key: Any, answer: Any) -> S:
        """The state when a process has got an answer."""
        answered = self.programs.answered(process, key, answer)
        return self._going(with_process(state, process, answered), answered)

    def _going(self, state: S, process: Process) -> S:
        """Let a process go on to its next request that is a step."""
        request = self.programs.request(process)
        if request is None:
            return self.gone(state, process)
        if isinstance(request, Next):
            after = Process(process.name, *request)
            return self._going(with_process(state, process, after), after)
        return self.step(state, process) if self.is_at_once(request) else state

    def gone(self, state: S, process: Process) -> S:
        return with_process(state, process, None)

    def is_at_once(self, request: Request) -> bool:
        """Whether nothing comes in between: what an index shows may be old anyway."""
        return request.kind == "look"

    def answer(self, state: S, process: Process, request: Request) -> tuple[Any, Any, S]:
        """What a request is answered, by what this is known, and the state after it."""
        del process
        about = request.about
        match request.kind:
            case "query":
                found = tuple(one for one in state.items if about.partition == one.key.PK)
                return found, self.table(found), state
            case "load":
                items = {one.key: one for one in state.items}
                loaded = {key: items[key].item if key in items else None for key in about}
                return (about, *map(items.get, about)), loaded, state
            case "write":
                try:
                    return (), None, changed(state, items=self.written(state.items, about))
                except ConditionFailedError as failed:
                    refused = Refused(dict(failed.items))
                    return repr(refused), refused, state
        return (), None, state

    def written(self, items: tuple[Stored, ...], writes: Sequence[Write]) -> tuple[Stored, ...]:
        """The items after a transaction.

        Raises:
            ConditionFailedError: a condition is not met.
        """
        kept = {one.key: one for one in items}
        before = [kept[one.key].item if one.key in kept else None for one in writes]
        for write, new in zip(writes, outcome(writes, before, INDEXES), strict=True):
            kept.pop(write.key, None)
            if new is not None and (self.keeps_log or not write.key.SK.startswith(EVENTS)):
                kept[write.key] = self.kept(new)
        return in_order(kept.values())

    def kept(self, item: Item) -> Stored:
        """The one object for an item."""
        key = repr(sorted(item.items()))
        if key not in self._stored:
            self._stored[key] = Stored(item)
        return self._stored[key]

    def table(self, items: tuple[Stored, ...]) -> MemoryTable:
        if items not in self._tables:
            table = self._tables[items] = MemoryTable(INDEXES)
            for one in items:
                table._store(one.key, None, one.item)
        return self._tables[items]


def explored(stage: Callable[[], Stage[S]], replaced: Iterable[tuple[str, Any]]) -> Report:
    """Visit every state of a stage while functions of the project are replaced."""
    with ExitStack() as patches:
        for name, value in replaced:
            patches.enter_context(mock.patch(name, value))
        world = stage()
        patches.callback(world.programs.close)
        how = (world.steps, world.broken, world.rests, world.stuck, world.shown)
        return Game(world.first(), *how).explore()


@cache
def marked(head: Head) -> Head:
    """Return HEAD with a mark that follows from what it says: equal ones are one state."""
    return replace(head, mark=str(hash(head)))


def with_process(state: S, old: Process, new: Process | None) -> S:
    """The state after a step of a process, or without it."""
    others = [one for one in state.processes if one != old]
    return changed(state, processes=tuple(sorted([*others, new] if new else others)))
