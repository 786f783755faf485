"""The worlds of lines, deletions, blobs and snapshots, and what each of their guards is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from a2a_serverless.storage import codec, conversation, snapshots
from a2a_serverless.storage.blobs import Blobs, store
from a2a_serverless.storage.durable import DurableStorage, readable_head
from a2a_serverless.storage.table import Delete, Item, Key, Put, Write, are
from a2a_serverless.tasks import attempts, rules
from a2a_serverless.tasks.blobs import Blob, BlobOwner, ToStore
from a2a_serverless.tasks.conversation import FirstDecision, StartDecision, on_first
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, OperationParams, SnapshotName
from a2a_serverless.tasks.rules import Step
from tests.model.blobs import BEHIND, DANGLES, FIRST, HEAD, UPLOADED, Files, ModelBlobs
from tests.model.blobs import LEFT as BLOB_LEFT
from tests.model.blobs import LOST as BLOB_LOST
from tests.model.blobs import UPLOAD as UPLOAD_LEFT
from tests.model.deletion import DeletionJob, Guards
from tests.model.lines import Lines
from tests.model.programs import ModelTable
from tests.model.search import Decision, Report
from tests.model.snapshots import BEYOND, GONE, LITTER, MISREAD, Turns
from tests.support.heads import with_fields

TALK = Lines(is_late=False, is_serial=True)
"""A conversation, whose turns wait for no share."""
PROMPT = replace(TALK, sweeps=False)
"""Nothing dies: no sweep is needed."""
LEFT, WAITS = "a task is left", "a turn waits for ever"

W = TypeVar("W", Lines, Files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A world, and the states that it has at the least: with far fewer something does not act."""

    name: str
    least: int
    world: Lines | DeletionJob | Files

    def explore(self) -> Report:
        return self.world.explore()


SHORT = (
    Small(name="two messages of a conversation", least=300, world=PROMPT),
    Small(name="a death beside a conversation", least=2_500, world=replace(TALK, deaths=1)),
    Small(
        name="a cancel in a conversation",
        least=1_000,
        world=replace(TALK, accepted=2, places=1, cancels=1),
    ),
    Small(name="turns that wait for a share", least=1_000, world=Lines(lags=True)),
    Small(
        name="shares without a sweep",
        least=1_000,
        world=Lines(lags=True, sweeps=False),
    ),
    Small(
        name="a death among turns that wait for a share",
        least=2_000,
        world=Lines(accepted=2, deaths=1),
    ),
    Small(
        name="a cancel of a turn that waits for a share",
        least=4_000,
        world=Lines(accepted=2, cancels=1),
    ),
    Small(
        name="a deletion of a turn that waits for a share",
        least=5_000,
        world=Lines(accepted=2, deletions=1),
    ),
    Small(
        name="shares of three turns, of two callers",
        least=100,
        world=Lines(callers="aab", accepted=3, places=1),
    ),
    Small(name="a deletion beside messages", least=1_000, world=DeletionJob()),
    Small(name="deaths beside a deletion", least=1_000, world=DeletionJob(deaths=2)),
    Small(name="a barrier that lapses", least=1_000, world=DeletionJob(lapses=1)),
    Small(
        name="a barrier that lapses, and a death",
        least=1_000,
        world=DeletionJob(deaths=1, lapses=1),
    ),
    Small(
        name="blobs of attempts that die",
        least=3_000,
        world=Files(attempts=2, deletions=1, deaths=1),
    ),
    Small(
        name="blobs of attempts at a task that is deleted",
        least=3_000,
        world=Files(attempts=2, deletions=1),
    ),
    Small(
        name="blobs of two tasks of one id",
        least=2_000,
        world=Files(creations=2, attempts=1, deletions=1),
    ),
    Small(
        name="blobs beside a transaction that is seen in part",
        least=5_000,
        world=Files(creations=2, attempts=1, deletions=1, halves=1),
    ),
    Small(
        name="blobs of a caller that is deleted",
        least=400,
        world=Files(creations=2, purges=1, deaths=1, limit=1, link=UPLOADED),
    ),
    Small(
        name="a link to a blob of a task that is deleted",
        least=200,
        world=Files(creations=2, deletions=1, link=FIRST),
    ),
    Small(name="blobs that expire", least=1_000, world=Files(creations=2, attempts=1, days=2)),
    Small(name="snapshots of two turns at once", least=300, world=Turns(deaths=1)),
    Small(name="snapshots beside a reader", least=2_500, world=Turns(readings=1)),
    Small(name="snapshots and a transaction seen in part", least=500, world=Turns(halves=1)),
    Small(
        name="snapshots of two tasks of one id",
        least=4_000,
        world=Turns(creations=2, turns=1, deletions=1, deaths=1),
    ),
    Small(name="snapshots that expire", least=300, world=Turns(turns=1, days=2)),
)

LONG = (
    Small(
        name="three messages of a conversation",
        least=10_000,
        world=replace(PROMPT, callers="aaa"),
    ),
    Small(name="a cancel beside a conversation", least=50_000, world=replace(TALK, cancels=1)),
    Small(name="two deaths beside a conversation", least=10_000, world=replace(TALK, deaths=2)),
    Small(
        name="a deletion in a conversation",
        least=1_000,
        world=replace(TALK, accepted=2, deletions=1),
    ),
    Small(
        name="a conversation whose turns wait for a share",
        least=200,
        world=Lines(is_serial=True, accepted=2, deaths=1, places=1),
    ),
    Small(
        name="three turns that wait for a share",
        least=10_000,
        world=Lines(callers="aaa", accepted=3),
    ),
    Small(
        name="a death, and indexes that lag",
        least=10_000,
        world=Lines(accepted=2, places=1, deaths=1, lags=True),
    ),
    Small(name="a hasty sweep", least=10_000, world=Lines(accepted=2, hasty=1)),
    Small(name="two deaths", least=3_000, world=Lines(accepted=2, places=1, deaths=2)),
    Small(
        name="blobs of two tasks and two attempts",
        least=40_000,
        world=Files(creations=2, attempts=2, deletions=1),
    ),
    Small(
        name="blobs of three tasks of one id",
        least=100_000,
        world=Files(creations=3, deletions=2),
    ),
    Small(
        name="blobs of a caller that is deleted twice at once",
        least=40_000,
        world=Files(creations=2, purges=2, limit=2, link=UPLOADED),
    ),
    Small(
        name="blobs that expire beside a deletion",
        least=200_000,
        world=Files(creations=2, attempts=1, deletions=1, days=2),
    ),
    Small(name="snapshots of three turns at once", least=100_000, world=Turns(turns=3)),
    Small(name="snapshots beside a deletion", least=100_000, world=Turns(deletions=1)),
    Small(
        name="a reader of two tasks of one id that have snapshots",
        least=20_000,
        world=Turns(creations=2, turns=1, deletions=1, readings=1),
    ),
)


# -- guards that are off ---------------------------------------------------------------------

_replaced, _replaced_line = codec.replaced, conversation.replaced
_waking, _ended = rules.requeueing, rules._ended


async def _nothing(*_: Any, **__: Any) -> None:
    return None


def _runs(head: Head, line: Any) -> StartDecision:
    del head, line
    return StartDecision.RUN


def _stays(*args: Any, **options: Any) -> FirstDecision:
    first = on_first(*args, **options)
    return FirstDecision.STAYS if first is FirstDecision.DROP else first


def _replaces_any(before: Head, after: Head, now_ms: int) -> Put:
    write = _replaced(before, after, now_ms)
    return replace(write, when=are(incarnation=before.incarnation))


def _replaces_any_line(*args: Any) -> Write:
    return replace(_replaced_line(*args), when=[])


def _keeps_share(head: Head, *args: Any) -> Head:
    return with_fields(
        _ended(head, *args), has_share=head.turn.has_share, waits_since=head.turn.waits_since
    )


def _same_copy(head: Head, **options: Any) -> Head | None:
    after = _waking(head, **options)
    return after and with_fields(after, sends=head.turn.sends)


def _leaves_woken(head: Head, params: OperationParams) -> bool:
    return attempts.may_park(with_fields(head, has_share=False), params)


def _takes_for_left(item: Any, now_ms: int) -> Head | None:
    head = readable_head(item, now_ms)
    return head and with_fields(head, parked="share")


def _never_due(*_: Any, **__: Any) -> None:
    return None


_delete_items, _delete_blobs = ModelTable.delete, ModelBlobs.delete
_create = DurableStorage._create
_WAITING: ContextVar[tuple[Blobs, Sequence[ToStore]]] = ContextVar("_WAITING")


async def _waits(store: Blobs, to_store: Sequence[ToStore]) -> None:
    _WAITING.set((store, to_store))


async def _inserts_first(*args: Any) -> tuple[Step, Head | None]:
    created = await _create(*args)
    await store(*_WAITING.get())
    return created


async def _notes_owner(self: ModelBlobs, owner: BlobOwner) -> None:
    self.doomed.append(owner)


async def _items_first(self: ModelTable, keys: Iterable[Key]) -> None:
    await _delete_items(self, keys)
    assert isinstance(self.blobs, ModelBlobs)
    for owner in self.blobs.doomed:
        await _delete_blobs(self.blobs, owner)


async def _head_first(self: ModelBlobs, owner: BlobOwner) -> None:
    await self.desk.ask("write", (Delete(key=HEAD),))
    await _delete_blobs(self, owner)


async def _reads_head(storage: DurableStorage, *_: str) -> Item | None:
    return await storage.table.get(HEAD)


async def _knows_head(storage: DurableStorage, partition: str, fence: str) -> Item:
    del storage, partition
    return {"incarnation": fence}


async def _unfenced(storage: DurableStorage, *_: str | None) -> tuple[Item | None, bool]:
    item = await storage.table.get(HEAD)
    return item and {**item, "incarnation": "none"}, True


_name, _put_blob = snapshots._name, ModelBlobs.put
_LATE: ContextVar[tuple[Blob, Any]] = ContextVar("_LATE")


def _wants_always(head: Head) -> bool:
    return head.size > head.snapshot.size


async def _keeps_own(storage: DurableStorage, before: Head, after: Head) -> Head:
    unneeded = await _name(storage, before, after)
    return replace(before, snapshot=SnapshotName()) if unneeded is after else unneeded


async def _puts_later(self: ModelBlobs, blob: Blob, content: Any, media_type: str) -> None:
    del self, media_type
    _LATE.set((blob, content))


async def _names_first(storage: DurableStorage, before: Head, after: Head) -> Head:
    unneeded = await _name(storage, before, after)
    assert isinstance(storage.table.blobs, ModelBlobs)
    await _put_blob(storage.table.blobs, *_LATE.get(), "")
    return unneeded


async def _deletes_first(storage: DurableStorage, before: Head, after: Head) -> Head:
    assert storage.table.blobs is not None
    if before.snapshot.version:
        await storage.table.blobs.delete(snapshots._owner(before))
    return await _name(storage, before, after)


async def _has_snapshot(storage: DurableStorage, log: Log, named: Head | None) -> Log | None:
    if named is None:
        return log
    since = await snapshots.snapshot_of(storage, named)
    return log.behind(since) if since else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard(Decision):
    """A guard of one of these worlds, which is `without` it."""

    without: Lines | DeletionJob | Files

    @property
    def scenario(self) -> str:
        return "" if isinstance(self.without, DeletionJob) else str(replace(self.without, off=()))

    def explore(self) -> Report:
        return self.without.explore()


def _off(world: W, *functions: tuple[str, Any]) -> W:
    """The world with functions of the project replaced."""
    return replace(world, off=functions)


def _deleting(guard: str, **world: int) -> DeletionJob:
    return DeletionJob(guards=replace(Guards(), **{guard: False}), **world)


_LINES, _SHARES = "a2a_serverless.storage.conversation", "a2a_serverless.worker.shares"
_SWEEPER = "a2a_serverless.worker.sweeper"
_DURABLE, _WORKER = "a2a_serverless.storage.durable", "tests.model.lines"
_DELETION, _OWNER = "a2a_serverless.storage.deletion", "a2a_serverless.tasks.blobs.BlobOwner"
_TWO = Files(creations=2, deletions=1)
_SNAPSHOTS = "a2a_serverless.storage.snapshots"

GUARDS = (
    Guard(
        name="line-first",
        does="a turn runs only if its place is the first of its conversation",
        without=_off(PROMPT, (f"{_WORKER}.on_start", _runs)),
        breaks="two turns run at once",
    ),
    Guard(
        name="line-looks-again",
        does="who leaves a turn looks at the line afterwards",
        without=_off(PROMPT, (f"{_WORKER}.looks_again", _nothing)),
        breaks=WAITS,
    ),
    Guard(
        name="line-passes-on",
        does="who ends a turn wakes the next one of its conversation",
        without=_off(PROMPT, (f"{_LINES}.start_next_turn", _nothing)),
        breaks=WAITS,
    ),
    Guard(
        name="line-own-place",
        does="a place is given up only if it is still the first",
        without=_off(PROMPT, (f"{_LINES}.replaced", _replaces_any_line)),
        breaks="two turns run at once",
    ),
    Guard(
        name="line-drops",
        does="places of turns that have ended are dropped when they are the first",
        without=_off(
            replace(PROMPT, accepted=2, places=1, deletions=1),
            (f"{_LINES}.on_first", _stays),
        ),
        breaks=WAITS,
    ),
    Guard(
        name="line-sweeps",
        does="the sweeper passes on for each turn that is left, and sends what is owed",
        without=replace(PROMPT, deaths=1),
        breaks=WAITS,
    ),
    Guard(
        name="share-left",
        does="what an index that lags shows is woken only if HEAD says that it waits for a share",
        without=_off(Lines(accepted=2, lags=True), (f"{_SHARES}.readable_head", _takes_for_left)),
        breaks="a turn stands in line again and again",
    ),
    Guard(
        name="share-once",
        does="a turn that was woken is left no more: it has had its wait",
        without=_off(
            Lines(accepted=2, lags=True),
            (f"{_SHARES}.may_park", _leaves_woken),
            (f"{_WORKER}.may_park", _leaves_woken),
        ),
        breaks="a turn stands in line again and again",
    ),
    Guard(
        name="share-copy",
        does="a woken turn's message has a number of its own, which the queue has not seen",
        without=_off(
            Lines(accepted=2, sweeps=False),
            (f"{_DURABLE}.requeueing", _same_copy),
        ),
        breaks=WAITS,
    ),
    Guard(
        name="share-resend",
        does="the sweeper sends the copy of a turn whose waker, or worker, has died",
        without=_off(Lines(accepted=2, deaths=1), (f"{_SWEEPER}.overdue_turn", _never_due)),
        breaks=WAITS,
    ),
    Guard(
        name="share-sweeps",
        does="the sweeper wakes turns that no worker has seen in line",
        without=_off(Lines(accepted=2, lags=True), (f"{_SWEEPER}.MOST_REQUEUED", 0)),
        breaks=WAITS,
    ),
    Guard(
        name="share-ends",
        does="the end of a turn gives up its share",
        without=_off(Lines(accepted=2), ("a2a_serverless.tasks.rules._ended", _keeps_share)),
        breaks="what has ended keeps its share",
    ),
    Guard(
        name="share-refills",
        does="workers and the sweeper wake a turn where the chain of wakes was cut",
        without=_off(Lines(accepted=2, lags=True), (f"{_SHARES}.Shares.refill", _nothing)),
        breaks=WAITS,
    ),
    Guard(
        name="second-look",
        does="a creation looks at the barrier after its write, too",
        without=_deleting("second_look"),
        breaks=LEFT,
    ),
    Guard(
        name="barrier-kept",
        does="a deletion waits until no process goes by what it had read before",
        without=_deleting("kept"),
        breaks=LEFT,
    ),
    Guard(
        name="barrier-lag",
        does="and until the index shows what was written by then",
        without=_deleting("lag"),
        breaks=LEFT,
    ),
    Guard(
        name="barrier-birth",
        does="a barrier counts for what began before its end, also after its end",
        without=_deleting("by_birth"),
        breaks=LEFT,
    ),
    Guard(
        name="barrier-lapse",
        does="a deletion whose barrier has lapsed begins its wait anew",
        without=_deleting("lapse", lapses=1),
        breaks=LEFT,
    ),
    Guard(
        name="barrier-sweeps",
        does="a sweep takes back what a dead creator has stored behind a barrier",
        without=_deleting("sweeps", deaths=1),
        breaks="a task is left for ever",
    ),
    Guard(
        name="blob-before-commit",
        does="what a commit names is stored before it",
        without=_off(
            Files(),
            (f"{_DURABLE}.store", _waits),
            (f"{_DURABLE}.DurableStorage._create", _inserts_first),
        ),
        breaks=DANGLES,
    ),
    Guard(
        name="blob-incarnation",
        does="the key of a blob has the incarnation of its task",
        without=_off(
            _TWO, (f"{_OWNER}.prefix", property(lambda _: FIRST.rpartition("/")[0] + "/"))
        ),
        breaks=DANGLES,
    ),
    Guard(
        name="blob-fence",
        does="a deletion fences HEAD before it deletes a blob",
        without=_off(
            Files(deletions=1),
            (f"{_DELETION}._fenced", _unfenced),
            (f"{_DELETION}._settled", _knows_head),
        ),
        breaks=DANGLES,
    ),
    Guard(
        name="blob-looks-again",
        does="a deletion looks at HEAD after it has listed the items, and leaves that incarnation",
        without=_off(_TWO, (f"{_DELETION}._settled", _knows_head)),
        breaks=DANGLES,
        shows=("creation1: writes", "deletion1: queries", "deletion1: removes creation1"),
    ),
    Guard(
        name="blob-look-waits",
        does="and this look waits for a transaction of which the list may have seen a part",
        without=_off(replace(_TWO, halves=1), (f"{_DELETION}._settled", _reads_head)),
        breaks=DANGLES,
        shows=("but HEAD", "deletion1: queries", "deletion1: loads HEAD", "removes creation1"),
    ),
    Guard(
        name="blob-before-items",
        does="a deletion deletes blobs before the items by which it finds them",
        without=_off(
            Files(deletions=1),
            ("tests.model.blobs.ModelBlobs.delete", _notes_owner),
            ("tests.model.programs.ModelTable.delete", _items_first),
        ),
        breaks=BLOB_LOST,
    ),
    Guard(
        name="blob-before-head",
        does="and lets go of HEAD, by which it is found itself, last",
        without=_off(Files(deletions=1), ("tests.model.blobs.ModelBlobs.delete", _head_first)),
        breaks=BLOB_LOST,
    ),
    Guard(
        name="blob-own-fence",
        does="and only if HEAD is still the one that it has fenced",
        without=_off(replace(_TWO, deletions=2), (f"{_DELETION}.new_incarnation", lambda: "one")),
        breaks=BLOB_LOST,
        shows=("deletion1: writes HEAD", "deletion2: writes HEAD", "deletion1: writes HEAD"),
    ),
    Guard(
        name="blob-uploads",
        does="a deletion of all that a caller has includes what it has uploaded",
        without=_off(
            Files(purges=1, link=UPLOADED),
            (f"{_OWNER}.uploads", lambda scope: BlobOwner(scope, "none", "")),
        ),
        breaks=UPLOAD_LEFT,
    ),
    Guard(
        name="blob-rule",
        does="the store's rule removes what no task names, or has named",
        without=Files(attempts=1, deletions=1, deaths=1, keeps=0),
        breaks=BLOB_LEFT,
    ),
    Guard(
        name="blob-gone",
        does="a writer that finds its task deleted deletes what it has stored",
        without=_off(
            Files(attempts=1, deletions=1),
            (f"{_DURABLE}.DurableStorage.forget_gone", _nothing),
        ),
        breaks=BEHIND,
        shows=("deletion1: removes", "attempt1: puts"),
    ),
    Guard(
        name="blob-life",
        does="and keeps each blob for as long as a task lives",
        without=Files(days=1, keeps=1),
        breaks=DANGLES,
    ),
    Guard(
        name="blob-forget",
        does="a creation that meets an earlier one takes back what it has stored",
        without=_off(_TWO, (f"{_DURABLE}.DurableStorage._forget_blobs", _nothing)),
        breaks=BEHIND,
    ),
    Guard(
        name="snapshot-replaced",
        does="and only in the HEAD that was read: what that one names is deleted then",
        without=_off(Turns(), (f"{_DURABLE}.replaced", _replaces_any)),
        breaks=MISREAD,
    ),
    Guard(
        name="snapshot-own",
        does="who cannot name its snapshot deletes it",
        without=_off(Turns(), (f"{_SNAPSHOTS}._name", _keeps_own)),
        breaks=LITTER,
    ),
    Guard(
        name="snapshot-before-name",
        does="a snapshot is stored before HEAD names it",
        without=_off(
            Turns(turns=1),
            ("tests.model.blobs.ModelBlobs.put", _puts_later),
            (f"{_SNAPSHOTS}._name", _names_first),
        ),
        breaks=GONE,
    ),
    Guard(
        name="snapshot-after-name",
        does="and the one before is deleted after that",
        without=_off(Turns(), (f"{_SNAPSHOTS}._name", _deletes_first)),
        breaks=GONE,
    ),
    Guard(
        name="snapshot-turn",
        does="a snapshot is taken only while no turn is open",
        without=_off(Turns(), (f"{_SNAPSHOTS}.wants_snapshot", _wants_always)),
        breaks=BEYOND,
    ),
    Guard(
        name="snapshot-fallback",
        does="a reader that does not find the snapshot that it knows reads the whole log",
        without=_off(
            Turns(readings=1), (f"{_DURABLE}.DurableStorage._since_snapshot", _has_snapshot)
        ),
        breaks=MISREAD,
    ),
)
