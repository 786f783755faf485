"""Every interleaving of what is stored beside the log: puts, commits, deletions, deaths, time.

The world is one task's id, under which one task follows another. Creations, attempts and deletions
run the project's own code (`tests/model/programs.py`), one request a step; each creation makes
another incarnation. A store of blobs lists what a deletion names and removes what it has listed, as
S3 does. A transaction may be seen in its middle: its events are there, and HEAD follows. Days pass;
tasks, items and blobs have `LIFE` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple

from a2a.types import Artifact, Message, Part, SendMessageRequest

from a2a_serverless import errors
from a2a_serverless.storage import layout
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.codec import Commits
from a2a_serverless.storage.deletion import _DELETED, delete_data, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.blobs import Blob, BlobOwner, blob_of
from a2a_serverless.tasks.entries import OFFLOAD_BYTES, ArtifactWritten, content_of, parts_of
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit, Timing
from tests.model import programs
from tests.model.search import Report, Step

TASK, SCOPE = "a0", Scope.of("", "a")
PARTITION = layout.task_partition(SCOPE.digest, TASK)
HEAD = layout.head_key(SCOPE.digest, TASK)
SAID, MADE = b"s" * (OFFLOAD_BYTES + 1), b"m" * (OFFLOAD_BYTES + 1)
"""What a message and an artifact have."""
UPLOADED = Blob.of(SAID, BlobOwner.uploads(SCOPE.digest)._replace(incarnation="u" * 12)).key
FIRST = Blob.of(SAID, BlobOwner(SCOPE.digest, TASK, f"{'creation1':-<12}")).key
"""Keys of what a message may link to: an upload, and the file of the first task."""
DAY_MS = 86_400_000
LIFE = 2
DANGLES, TORN = "a reference of a live task names nothing", "a live task has lost some of its log"
LOST, UPLOAD = "a deletion leaves what it cannot find any more", "an upload is left"
BEHIND = "a blob of a deleted task is left by one that lives"


# -- programs --------------------------------------------------------------------------------

_NAME: ContextVar[str] = ContextVar("_NAME")


class ModelBlobs(MemoryBlobs):
    """Each request is asked for."""

    def __init__(self, desk: programs.Desk) -> None:
        self.desk = desk

    async def put(self, blob: Blob, content: bytes | BinaryIO, media_type: str) -> None:
        del media_type
        await self.desk.ask("put", (blob.key, content))

    async def get(self, blob: Blob) -> bytes | None:
        content: bytes | None = await self.desk.ask("get", blob.key)
        return content

    async def copy(self, source: Blob, blob: Blob) -> bool:
        is_there: bool = await self.desk.ask("copy", (source.key, blob.key))
        return is_there

    async def delete(self, owner: BlobOwner) -> int:
        deleted = 0
        while found := await self.desk.ask("list", owner.prefix):
            await self.desk.ask("remove", found)
            deleted += len(found)
        return deleted


def storage_of(desk: programs.Desk, name: str, now_ms: int) -> DurableStorage:
    """What the program of a process has; all that is random in it gets the process's name."""
    _NAME.set(f"{name:-<12}")
    desk.now_ms = now_ms
    table = programs.ModelTable(desk)
    table.blobs = ModelBlobs(desk)
    timing = Timing(ttl_s=LIFE * DAY_MS / 1000)
    return DurableStorage(table, scope=SCOPE, clock=programs.ModelClock(desk), timing=timing)


async def creation(desk: programs.Desk, name: str, now_ms: int, link: str) -> None:
    """Create the task, by a message with a file, or with a link to what is there already."""
    storage = storage_of(desk, name, now_ms)
    is_linked = link and name not in link
    part = Part(url=f"https://store/{link}") if is_linked else Part(raw=SAID)
    request = SendMessageRequest(message=Message(message_id="m", parts=[part]))
    with suppress(errors.InvalidArgumentError):  # there is nothing behind the link any more
        await storage.open_task("talk", request, task_id=TASK)


async def attempt(desk: programs.Desk, name: str, now_ms: int) -> None:
    """Read the task, store a file, and name it in the commit that claims the turn."""
    storage = storage_of(desk, name, now_ms)
    log = await storage.read(TASK)
    if log is None:
        return
    made = Artifact(artifact_id="made", parts=[Part(raw=MADE)])
    entries = (ArtifactWritten(await storage.offload(log.head, made)),)
    claim = Commit(entries=entries, token=name, claims=True, commit_id=name)
    with suppress(errors.TaskNotFoundError, errors.ConcurrencyError, errors.FencedError):
        await storage.commit(log.head, claim)


async def deletion(desk: programs.Desk, name: str, now_ms: int) -> None:
    await delete_task(storage_of(desk, name, now_ms), TASK)


async def purge(
    desk: programs.Desk, name: str, now_ms: int, limit: int, number: int = 1
) -> programs.Next | None:
    """Do a step of a deletion of all that the caller has, and go on until nothing is left.

    Each step has a fence of its own.
    """
    storage = storage_of(desk, f"{name}.{number}", now_ms)
    if (await delete_data(storage, limit=limit)).is_done:
        await desk.ask("done")
        return None
    return programs.Next("purge", (name, now_ms, limit, number + 1))


# -- the world -------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A blob, the day on which it was stored, and whether a deletion owes that it goes."""

    key: str
    day: int = 0
    is_owed: bool = False

    @property
    def incarnation(self) -> str:
        return self.key.split("/")[1]


class Half(NamedTuple):
    """A transaction whose events are there already, and HEAD as it is to be."""

    process: str
    head: programs.Stored


class State(NamedTuple):
    """What is stored, who is at work, and what may still come."""

    items: tuple[programs.Stored, ...] = ()
    processes: tuple[programs.Process, ...] = ()
    blobs: tuple[Kept, ...] = ()
    half: Half | None = None
    day: int = 0
    is_over: bool = False
    """All days have passed."""
    is_purged: bool = False
    is_misread: bool = False
    creations: int = 0
    attempts: int = 0
    turns: int = 0
    readings: int = 0
    deletions: int = 0
    purges: int = 0
    deaths: int = 0
    halves: int = 0
    """How many may still come."""

    @property
    def now_ms(self) -> int:
        return programs.NOW_MS + self.day * DAY_MS

    @property
    def head(self) -> programs.Stored | None:
        return next((one for one in self.items if one.key == HEAD), None)

    def of(self, incarnation: str | None) -> tuple[programs.Stored, ...]:
        """The items of an incarnation; of none: HEAD."""
        every = ((layout.incarnation_in(one.key.SK), one) for one in self.items)
        return tuple(one for name, one in every if name == incarnation)


_RANDOM = ("storage.durable.new_incarnation", "storage.deletion.new_incarnation")
_SAME: tuple[tuple[str, Any], ...] = (
    *(
        (f"a2a_serverless.{name}", lambda: _NAME.get())  # noqa: PLW0108 - it patches a function
        for name in (*_RANDOM, "tasks.rules.new_token")
    ),
    ("a2a_serverless.storage.changes.marked", programs.marked),
    ("a2a_serverless.storage.durable.marked", programs.marked),
    ("a2a_serverless.storage.blobs.completed", lambda work: work),
)
"""What is random otherwise, and what would outlive a process that is halted: no thread goes on."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """One small world: what comes in it, at any time, and what may happen to it."""

    creations: int = 1
    attempts: int = 0
    deletions: int = 0
    """Of the task, by its client."""
    purges: int = 0
    """Of all that its caller has."""
    deaths: int = 0
    halves: int = 0
    """Transactions that are seen in their middle."""
    days: int = 0
    limit: int = 1000
    """The items that a step of a purge deletes."""
    link: str = ""
    """The key of what the messages link to, in the place of a file."""
    keeps: int = LIFE
    """The days after which the store's rule removes a blob; 0: there is no rule."""

    same: ClassVar[tuple[tuple[str, Any], ...]] = _SAME
    """What replaces functions in each world of the kind."""

    def world(self) -> World:
        return World(self)

    def explore(self) -> Report:
        """Visit every state; see `Game.explore`.

        Each reference in the log of a live task is stored, and its log is whole. What was stored
        when a deletion fenced its task stays within its reach until it is gone: HEAD and an item of
        its incarnation are there. Where nobody has died, nothing is left of a task that is deleted.
        A purge that is done has left no upload. From every state all
        ends: deletions that have died are repeated, and at last no blob is there.
        """
        return programs.explored(self.world, self.same)


class World(programs.Stage[State]):
    """What happens in a world, and what it promises."""

    programs_of: ClassVar[tuple[programs.Program, ...]] = (creation, attempt, deletion, purge)
    kinds: ClassVar[tuple[str, ...]] = ("creation", "attempt", "deletion", "purge")
    """What comes at any time."""
    timed: ClassVar[tuple[str, ...]] = ("attempt",)
    """The programs that go by the time of each answer."""
    stuck = "a blob is left for ever"

    def __init__(self, files: Files) -> None:
        super().__init__(self.programs_of)
        self.files = files
        self.contents: dict[str, Any] = {}
        """What was ever stored, by its key, which has the content's digest."""
        self._named: dict[Any, frozenset[str] | None] = {}

    def first(self) -> State:
        files = self.files
        kinds = [*(f"{kind}s" for kind in self.kinds), "deaths", "halves"]
        uploaded = [Kept(UPLOADED)] if files.link == UPLOADED else []
        return State(blobs=tuple(uploaded), **{kind: getattr(files, kind) for kind in kinds})

    def wrong(self, state: State) -> str:
        stored = {one.key for one in state.blobs}
        head = None if state.head is None else state.head.head
        if head is not None and head.expires_at > state.now_ms:
            named = self._named_by(state.of(head.incarnation), head.incarnation, head.version)
            if named is None:
                return TORN
            if not named <= stored:
                return DANGLES
        for one in state.blobs:
            if one.is_owed and not (of := state.of(one.incarnation)):
                return LOST
            if one.is_owed and head is None and of[0].item["expires_at"] * 1000 > state.now_ms:
                return LOST
        is_quiet = not (state.processes or state.items or state.day or state.is_over)
        if is_quiet and state.deaths == self.files.deaths and stored - {UPLOADED}:
            return BEHIND
        is_left = state.is_purged and UPLOADED in stored
        return UPLOAD if is_left else ""

    def _named_by(
        self, items: tuple[programs.Stored, ...], incarnation: str, version: int
    ) -> frozenset[str] | None:
        """The keys of what a log names; None: it lacks a commit."""
        key = (items, version)
        if key not in self._named:
            commits = Commits(incarnation, 0)
            commits.add(one.item for one in items)
            entries = (entry for one in commits.records[:version] for entry in one.entries)
            found = (blob_of(part) for entry in entries for part in parts_of(content_of(entry)))
            keys = frozenset(blob.key for blob in found if blob is not None)
            self._named[key] = keys if commits.version >= version else None
        return self._named[key]

    def rests(self, state: State) -> bool:
        return not (state.processes or state.items or state.blobs)

    def shown(self, state: State) -> str:
        head = state.head
        name = "none" if head is None else str(head.item["incarnation"]).rstrip("-")
        is_gone = head is not None and head.item["expires_at"] * 1000 <= state.now_ms
        blobs = ", ".join(f"{_short(one.key)}{'*' * one.is_owed}" for one in state.blobs)
        return f"day {state.day}, HEAD {name}{' (gone)' * is_gone}; {blobs}"

    # -- steps ---------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        if state.is_over:
            return
        for process in state.processes:
            yield from self._of_process(state, process)
        names = {process.name for process in state.processes}
        if state.half is not None and state.half.process not in names:
            yield "the transaction of a dead process ends", self._whole(state, state.half), True
        for kind in self.kinds:
            if (left := getattr(state, f"{kind}s")) and self.comes(state, kind):
                begun = state._replace(**{f"{kind}s": left - 1})
                name = f"{kind}{getattr(self.files, f'{kind}s') - left + 1}"
                yield f"{name} comes", self._begins(begun, kind, name), False
        yield from self._of_time(state)
        if not state.processes and state.half is None:
            if state.head is not None and state.head.item["expires_at"] == _DELETED:
                yield "the deletion is repeated", self._begins(state, "purge", "purge9"), True
            else:
                kept = () if self.files.keeps else state.blobs
                over = state._replace(is_over=True, items=(), blobs=kept)
                yield "all days pass", over, True

    def comes(self, state: State, kind: str) -> bool:
        del state, kind
        return True

    def _begins(self, state: State, kind: str, name: str) -> State:
        more = {"creation": (self.files.link,), "purge": (self.files.limit,)}.get(kind, ())
        return self.begun(state, programs.Process(name, kind, (name, state.now_ms, *more)))

    def _of_process(self, state: State, process: programs.Process) -> Iterator[Step[State]]:
        request = self.programs.request(process)
        assert isinstance(request, programs.Request)
        told, half = f"{process.name}: {_told(request)}", state.half
        if state.deaths:
            dead = self.gone(state._replace(deaths=state.deaths - 1), process)
            yield f"{process.name} dies before: {_told(request)}", dead, False
        if half is not None and half.process == process.name:
            yield f"{told}, and HEAD follows", self._answered(state, process, half), True
            return
        is_of_head = request.kind == "write" and any(one.key == HEAD for one in request.about)
        if is_of_head and half is not None:
            return  # the table refuses it for now, and it is repeated
        yield told, self.step(state, process), True
        if is_of_head and len(request.about) > 1 and state.halves:
            with suppress(errors.ConditionFailedError):
                items = self.written(state.items, request.about)
                head = next(one for one in items if one.key == HEAD)
                seen = [*(one for one in items if one.key != HEAD), *filter(None, [state.head])]
                after = state._replace(items=programs.in_order(seen), half=Half(process.name, head))
                yield f"{told}, but HEAD", after._replace(halves=state.halves - 1), False

    def _answered(self, state: State, process: programs.Process, half: Half) -> State:
        """The state when the process of a transaction gets its answer."""
        return self.going_on(self._whole(state, half), process, "written", None)

    def _whole(self, state: State, half: Half) -> State:
        others = (one for one in state.items if one.key != HEAD)
        return state._replace(items=programs.in_order([*others, half.head]), half=None)

    def _of_time(self, state: State) -> Iterator[Step[State]]:
        is_created = any(process.program == "creation" for process in state.processes)
        if state.day < self.files.days and not is_created:  # that is a matter of seconds
            yield "a day passes", state._replace(day=state.day + 1), False
        for one in state.blobs:
            if self.files.keeps and one.day + self.files.keeps <= state.day:
                kept = tuple(each for each in state.blobs if each != one)
                yield f"the rule removes {one.key[-12:]}", state._replace(blobs=kept), True
        for name in dict.fromkeys(layout.incarnation_in(one.key.SK) for one in state.items):
            items = state.of(name)
            if self.files.days and _DELETED < items[0].item["expires_at"] <= state.now_ms // 1000:
                left = tuple(one for one in state.items if one not in items)
                owed = ((one, one.is_owed and one.incarnation != name) for one in state.blobs)
                spared = (one._replace(is_owed=is_owed) for one, is_owed in owed)
                forgot = state._replace(items=left, blobs=tuple(spared))
                yield f"the table forgets {name or 'HEAD'}", forgot, True

    # -- requests ------------------------------------------------------------------------------

    def is_at_once(self, request: programs.Request) -> bool:
        """Whether nothing comes in between: what it is about is in no promise."""
        if request.kind not in ("load", "write"):
            return request.kind in ("look", "done")
        keys = [getattr(one, "key", one) for one in request.about]
        return all(key.PK != PARTITION for key in keys)

    def answer(
        self, state: State, process: programs.Process, request: programs.Request
    ) -> tuple[Any, Any, State]:
        about, blobs = request.about, {one.key: one for one in state.blobs}
        key: Any = ()
        answer: Any = None
        after = state
        match request.kind:
            case "look":
                key, answer = state.items, self.table(state.items)
            case "put":
                stored, self.contents[stored] = about
                after = _with_blobs(state, {**blobs, stored: Kept(stored, state.day)}.values())
            case "get":
                key = about, about in blobs
                answer = self.contents[about] if about in blobs else None
            case "copy":
                source, copied = about
                key = answer = source in blobs
                if answer:
                    after = _with_blobs(state, {**blobs, copied: Kept(copied, state.day)}.values())
            case "list":
                key = answer = tuple(sorted(each for each in blobs if each.startswith(about)))
            case "remove":
                after = _with_blobs(state, [o for o in state.blobs if o.key not in about])
            case "done":
                after = state._replace(is_purged=True)
            case _:
                key, answer, after = super().answer(state, process, request)
                after = _owing(state, after)
        if process.program in self.timed:  # what a deletion does does not depend on the time
            return (key, state.day), programs.Timed(answer, state.now_ms), after
        return key, answer, after


def _with_blobs(state: State, blobs: Iterable[Kept]) -> State:
    return state._replace(blobs=tuple(sorted(blobs)))


def _owing(before: State, after: State) -> State:
    """The state after a write: what a task has stored is owed once the task is fenced."""
    old, new = before.head, after.head
    is_fenced = new is not None and new.item["expires_at"] == _DELETED
    if (
        old is None
        or new is None
        or not is_fenced
        or old.item["incarnation"] == new.item["incarnation"]
    ):
        return after
    doomed = old.item["incarnation"] if after.of(old.item["incarnation"]) else ""
    blobs = [b._replace(is_owed=b.is_owed or b.incarnation == doomed) for b in after.blobs]
    return after._replace(blobs=tuple(blobs))


def _told(request: programs.Request) -> str:
    match request.kind:
        case "write" | "load":
            keys = [getattr(one, "key", one) for one in request.about]
            return f"{request.kind}s {', '.join(key.SK[:15].rstrip('-') for key in keys)}"
        case "query":
            return "queries the task"
        case "put":
            return f"puts {_short(request.about[0])}"
        case "get":
            return f"gets {_short(request.about)}"
        case "copy":
            return f"copies {' to '.join(map(_short, request.about))}"
        case "remove":
            return f"removes {', '.join(map(_short, request.about))}"
        case "list":
            return f"lists {request.about[33:].rstrip('-/')}"
    return request.kind


def _short(key: str) -> str:
    """The incarnation of a blob, and the version of a snapshot, or the first digits of a digest."""
    _, incarnation, name, *_ = key.split("/")
    return f"{incarnation.rstrip('-')}/{name[:3]}"
