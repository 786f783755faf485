"""Every interleaving of turns, the snapshots that follow them, readers, deletions, deaths, time.

A world beside that of blobs, whose stage, creations and deletions it has. A turn accepts a message,
or finds one, writes and ends, each in a commit of its own, and then takes a snapshot. It may be
held up before each request while later turns open, end and are followed by theirs.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskState, TaskStatus

from a2a_serverless.errors import ConcurrencyError, FencedError, TaskNotFoundError
from a2a_serverless.storage import layout
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.codec import Commits
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.snapshots import take_snapshot
from a2a_serverless.storage.table import Delete
from a2a_serverless.tasks.entries import ArtifactWritten, Caller, StatusChanged, TurnOpened
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.model import blobs
from tests.model.programs import Desk, ModelClock, Next, Process, Request
from tests.support.queues import done

BEYOND = "HEAD names a snapshot of what an open turn may take back"
GONE = "HEAD of a live task names a snapshot that is not stored"
MISREAD = "a snapshot makes a task another one"
LITTER = "a snapshot that no task needs is left, and nothing has died"
ASKS = TaskState.TASK_STATE_INPUT_REQUIRED

T = TypeVar("T")


async def turn(desk: Desk, name: str, now_ms: int) -> Next | None:
    """Accept a message if the task waits for one; claim the turn and write, end it, go on."""
    storage = blobs.storage_of(desk, name, now_ms)
    log = await storage.read(blobs.TASK, is_whole=False)
    if log is None:
        return None
    head = log.head
    opening = SendMessageRequest(message=Message(message_id=name, parts=[Part(text=name)]))
    made = Artifact(artifact_id=name, parts=[Part(text=name)])
    ended = StatusChanged(TaskStatus(state=ASKS))
    commits = [
        Commit(entries=(TurnOpened(opening, Caller()),), commit_id=f"{name}.0"),
        Commit(entries=(ArtifactWritten(made),), token=name, claims=True, commit_id=f"{name}.1"),
        Commit(entries=(ended,), token=name, ends_turn=True, commit_id=f"{name}.2"),
    ]
    with suppress(TaskNotFoundError, ConcurrencyError, FencedError):
        for commit in commits[head.turn.is_open :]:
            head = await storage.commit(head, commit)
        return Next("snapshot", (name, now_ms, head))
    return None


async def snapshot(desk: Desk, name: str, now_ms: int, head: Head) -> None:
    """Do what a worker does after a turn."""
    await take_snapshot(blobs.storage_of(desk, name, now_ms), head)


async def reading(desk: Desk, name: str, now_ms: int) -> None:
    """Read the task, with a snapshot if there is one."""
    log = await blobs.storage_of(desk, name, now_ms).read(blobs.TASK, is_whole=False)
    await desk.ask("read", log and (log.head, _seen(log)))


def _seen(log: Log) -> Any:
    """What readers, and the next attempt, make of a log."""
    fold = log.fold()
    folds = [fold, log.restarted()] if log.head.turn.is_open else [fold]
    tasks = [one.task().SerializeToString(deterministic=True) for one in folds]
    return *tasks, fold.turn_at(fold.version)


async def _at_once(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


@dataclass(frozen=True, kw_only=True)
class Turns(blobs.Files):
    """One small world of a task that has snapshots: each turn wants one.

    Besides the promises of `Files`: with a snapshot a live task reads as its whole log does, also
    for a reader that was held up between two requests; HEAD of a live task names a snapshot that is
    stored, and none of what an open turn may take back; and where nothing has died no snapshot is
    left when all processes have ended, but the one that HEAD names.
    """

    turns: int = 2
    readings: int = 0
    same: ClassVar[tuple[tuple[str, Any], ...]] = (
        *blobs.Files.same,
        ("a2a_serverless.tasks.rules.SNAPSHOT_BYTES", 1),
        ("a2a_serverless.storage.durable._NEWEST", 3),
        ("asyncio.to_thread", _at_once),
        ("tests.model.blobs.SAID", b"said"),
    )

    def world(self) -> blobs.World:
        return _World(self)


class _World(blobs.World):
    programs_of = (blobs.creation, turn, snapshot, reading, blobs.deletion, blobs.purge)
    kinds = ("creation", "turn", "reading", "deletion")
    timed = ("turn", "snapshot", "reading")

    def __init__(self, files: blobs.Files) -> None:
        super().__init__(files)
        self._read: dict[Any, bool] = {}

    def comes(self, state: blobs.State, kind: str) -> bool:
        """A creation comes only if there is no task, all else only if there is one."""
        return (_live(state) is None) == (kind == "creation")

    def wrong(self, state: blobs.State) -> str:
        if state.is_misread:
            return MISREAD
        if (head := _live(state)) is not None:
            if head.snapshot.version > (head.turn.base if head.turn.is_open else head.version):
                return BEYOND
            named = [one for one in state.blobs if one.key.endswith(_end_of(head))]
            if head.snapshot.version and not named:
                return GONE
            if not self._reads_alike(state):
                return MISREAD
        has_ended = not state.processes and state.deaths == self.files.deaths
        if has_ended and any(_is_litter(one, state) for one in state.blobs):
            return LITTER
        return super().wrong(state)

    def _reads_alike(self, state: blobs.State) -> bool:
        """Whether a reader gets the same with a snapshot and without."""
        if (key := state.items) not in self._read:
            desk = Desk(())
            desk.now_ms = state.now_ms
            table = self.table(state.items)
            table.blobs = stored = MemoryBlobs(ModelClock(desk))
            stored._contents = self.contents
            storage = DurableStorage(table, scope=blobs.SCOPE, clock=ModelClock(desk))
            logs = [done(storage.read(blobs.TASK, is_whole=one)) for one in (False, True)]
            log, whole = (log and _seen(log) for log in logs)
            self._read[key] = log is not None and log == whole
        return self._read[key]

    def answer(
        self, state: blobs.State, process: Process, request: Request
    ) -> tuple[Any, Any, blobs.State]:
        if request.kind == "read":
            return (), None, state._replace(is_misread=self._is_misread(state, request.about))
        return super().answer(state, process, request)

    def _is_misread(self, state: blobs.State, read: tuple[Head, Any] | None) -> bool:
        """Whether a reader has got what was not stored, or nothing of a task that was there."""
        if read is None:
            return _live(state) is not None and state.deletions == self.files.deletions
        head, seen = read
        commits = Commits(head.incarnation, 0)
        commits.add(one.item for one in state.of(head.incarnation))
        if commits.version < head.version:  # it is deleted meanwhile
            return False
        records = tuple(commits.records[: head.version])
        return bool(_seen(Log(head=head, records=records)) != seen)

    def is_at_once(self, request: Request) -> bool:
        """The same; a write goes by what was loaded, and what a deletion takes is in no promise."""
        is_forgotten = request.kind == "write" and all(
            isinstance(one, Delete) and one.key.SK != layout.HEAD for one in request.about
        )
        return is_forgotten or request.kind in ("load", "read") or super().is_at_once(request)


def _live(state: blobs.State) -> Head | None:
    head = None if state.head is None else state.head.head
    return None if head is None or head.has_expired(state.now_ms) else head


def _is_litter(blob: blobs.Kept, state: blobs.State) -> bool:
    """Whether a blob is a snapshot that no one will delete but the store's rule.

    What a task had when the table has forgotten it is left to the rule, too.
    """
    if not blob.key.split("/")[2].startswith("!"):
        return False
    head = None if state.head is None else state.head.head
    if head is not None and head.incarnation == blob.incarnation:
        return not blob.key.endswith(_end_of(head))
    return head is not None or not state.day


def _end_of(head: Head) -> str:
    mark = f"{head.incarnation}/!{head.snapshot.version}"
    return f"/{mark}/{head.snapshot.digest}.{head.snapshot.length}"
