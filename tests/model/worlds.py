"""The worlds of lines, deletions, blobs and snapshots, and what each of their guards is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

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
from tests.model.blobs import FIRST, HEAD, UPLOADED, Files, ModelBlobs
from tests.model.deletion import DeletionJob
from tests.model.lines import Lines
from tests.model.programs import ModelTable
from tests.model.search import Report, Small, fields_of, guards_of, table
from tests.model.snapshots import Turns
from tests.support.heads import with_fields

_KINDS: Final[dict[str, Lines | DeletionJob | Files]] = {
    "talk": Lines(is_late=False, is_serial=True),  # a conversation, whose turns wait for no share
    "prompt": Lines(is_late=False, is_serial=True, sweeps=False),  # and nothing dies
    "shares": Lines(),
    "deletion": DeletionJob(),
    "blobs": Files(),
    "snapshots": Turns(),
}
_LINKS: Final = {"uploaded": UPLOADED, "first": FIRST}


def _world_of(words: str) -> Lines | DeletionJob | Files:
    """The world of a kind, with other values of its fields; a link is named."""
    kind, _, more = words.partition(" ")
    fields: dict[str, Any] = fields_of(more)
    if "link" in fields:
        fields["link"] = _LINKS[fields["link"]]
    return replace(_KINDS[kind], **fields)


def _worlds(rows: str) -> tuple[Small, ...]:
    """Worlds by rows: the name, the states that it has at the least, and what it is."""
    return tuple(
        Small(name, int(least), _world_of(words).explore) for name, least, words in table(rows)
    )


SHORT = _worlds("""
two messages of a conversation | 300 | prompt
a death beside a conversation | 2_500 | talk deaths
a cancel in a conversation | 1_000 | talk accepted=2 places cancels
turns that wait for a share | 1_000 | shares lags
shares without a sweep | 1_000 | shares lags sweeps=0
a death among turns that wait for a share | 2_000 | shares accepted=2 deaths
a cancel of a turn that waits for a share | 4_000 | shares accepted=2 cancels
a deletion of a turn that waits for a share | 5_000 | shares accepted=2 deletions
shares of three turns, of two callers | 100 | shares callers=aab accepted=3 places
a deletion beside messages | 1_000 | deletion
deaths beside a deletion | 1_000 | deletion deaths=2
a barrier that lapses | 1_000 | deletion lapses
a barrier that lapses, and a death | 1_000 | deletion deaths lapses
blobs of attempts that die | 3_000 | blobs attempts=2 deletions deaths
blobs of attempts at a task that is deleted | 3_000 | blobs attempts=2 deletions
blobs of two tasks of one id | 2_000 | blobs creations=2 attempts deletions
blobs beside a transaction that is seen in part | 5_000 |
    blobs creations=2 attempts deletions halves
blobs of a caller that is deleted | 400 | blobs creations=2 purges deaths limit=1 link=uploaded
a link to a blob of a task that is deleted | 200 | blobs creations=2 deletions link=first
blobs that expire | 1_000 | blobs creations=2 attempts days=2
snapshots of two turns at once | 300 | snapshots deaths
snapshots beside a reader | 2_500 | snapshots readings
snapshots and a transaction seen in part | 500 | snapshots halves
snapshots of two tasks of one id | 4_000 | snapshots creations=2 turns=1 deletions deaths
snapshots that expire | 300 | snapshots turns=1 days=2
""")

LONG = _worlds("""
three messages of a conversation | 10_000 | prompt callers=aaa
a cancel beside a conversation | 50_000 | talk cancels
two deaths beside a conversation | 10_000 | talk deaths=2
a deletion in a conversation | 1_000 | talk accepted=2 deletions
a conversation whose turns wait for a share | 200 | shares is_serial accepted=2 deaths places
three turns that wait for a share | 10_000 | shares callers=aaa accepted=3
a death, and indexes that lag | 10_000 | shares accepted=2 places deaths lags
a hasty sweep | 10_000 | shares accepted=2 hasty
two deaths | 3_000 | shares accepted=2 places deaths=2
blobs of two tasks and two attempts | 40_000 | blobs creations=2 attempts=2 deletions
blobs of three tasks of one id | 100_000 | blobs creations=3 deletions=2
blobs of a caller that is deleted twice at once | 40_000 |
    blobs creations=2 purges=2 limit=2 link=uploaded
blobs that expire beside a deletion | 200_000 | blobs creations=2 attempts deletions days=2
snapshots of three turns at once | 100_000 | snapshots turns=3
snapshots beside a deletion | 100_000 | snapshots deletions
a reader of two tasks of one id that have snapshots | 20_000 |
    snapshots creations=2 turns=1 deletions readings
""")


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


_LINES, _SHARES = "a2a_serverless.storage.conversation", "a2a_serverless.worker.shares"
_SWEEPER = "a2a_serverless.worker.sweeper"
_DURABLE, _WORKER = "a2a_serverless.storage.durable", "tests.model.lines"
_DELETION, _OWNER = "a2a_serverless.storage.deletion", "a2a_serverless.tasks.blobs.BlobOwner"
_SNAPSHOTS, _BLOBS = "a2a_serverless.storage.snapshots", "tests.model.blobs.ModelBlobs"

_OFF: dict[str, dict[str, Any]] = {
    "line-first": {f"{_WORKER}.on_start": _runs},
    "line-looks-again": {f"{_WORKER}.looks_again": _nothing},
    "line-passes-on": {f"{_LINES}.start_next_turn": _nothing},
    "line-own-place": {f"{_LINES}.replaced": _replaces_any_line},
    "line-drops": {f"{_LINES}.on_first": _stays},
    "line-sweeps": {},  # its world has none
    "share-left": {f"{_SHARES}.readable_head": _takes_for_left},
    "share-once": {
        f"{_SHARES}.may_park": _leaves_woken,
        f"{_WORKER}.may_park": _leaves_woken,
    },
    "share-copy": {f"{_DURABLE}.requeueing": _same_copy},
    "share-resend": {f"{_SWEEPER}.overdue_turn": _never_due},
    "share-sweeps": {f"{_SWEEPER}.MOST_REQUEUED": 0},
    "share-ends": {"a2a_serverless.tasks.rules._ended": _keeps_share},
    "share-refills": {f"{_SHARES}.Shares.refill": _nothing},
    "blob-before-commit": {
        f"{_DURABLE}.store": _waits,
        f"{_DURABLE}.DurableStorage._create": _inserts_first,
    },
    "blob-incarnation": {
        f"{_OWNER}.prefix": property(lambda _: FIRST.rpartition("/")[0] + "/"),
    },
    "blob-fence": {f"{_DELETION}._fenced": _unfenced, f"{_DELETION}._settled": _knows_head},
    "blob-looks-again": {f"{_DELETION}._settled": _knows_head},
    "blob-look-waits": {f"{_DELETION}._settled": _reads_head},
    "blob-before-items": {
        f"{_BLOBS}.delete": _notes_owner,
        "tests.model.programs.ModelTable.delete": _items_first,
    },
    "blob-before-head": {f"{_BLOBS}.delete": _head_first},
    "blob-own-fence": {f"{_DELETION}.new_incarnation": lambda: "one"},
    "blob-uploads": {f"{_OWNER}.uploads": lambda scope: BlobOwner(scope, "none", "")},
    "blob-rule": {},  # its world has none
    "blob-gone": {f"{_DURABLE}.DurableStorage.forget_gone": _nothing},
    "blob-life": {},  # the rule of its world is short
    "blob-forget": {f"{_DURABLE}.DurableStorage._forget_blobs": _nothing},
    "snapshot-replaced": {f"{_DURABLE}.replaced": _replaces_any},
    "snapshot-own": {f"{_SNAPSHOTS}._name": _keeps_own},
    "snapshot-before-name": {
        f"{_BLOBS}.put": _puts_later,
        f"{_SNAPSHOTS}._name": _names_first,
    },
    "snapshot-after-name": {f"{_SNAPSHOTS}._name": _deletes_first},
    "snapshot-turn": {f"{_SNAPSHOTS}.wants_snapshot": _wants_always},
    "snapshot-fallback": {f"{_DURABLE}.DurableStorage._since_snapshot": _has_snapshot},
}
"""What replaces functions of the project while a guard is off; those of deletions have their own
way."""

_ROWS = """
line-first | a turn runs only if its place is the first of its conversation | prompt |
    two turns run at once
line-looks-again | who leaves a turn looks at the line afterwards | prompt | a turn waits for ever
line-passes-on | who ends a turn wakes the next one of its conversation | prompt |
    a turn waits for ever
line-own-place | a place is given up only if it is still the first | prompt | two turns run at once
line-drops | places of turns that have ended are dropped when they are the first |
    prompt accepted=2 places deletions | a turn waits for ever
line-sweeps | the sweeper passes on for each turn that is left, and sends what is owed |
    prompt deaths | a turn waits for ever
share-left | what an index that lags shows is woken only if HEAD says that it waits for a share |
    shares accepted=2 lags | a turn stands in line again and again
share-once | a turn that was woken is left no more: it has had its wait | shares accepted=2 lags |
    a turn stands in line again and again
share-copy | a woken turn's message has a number of its own, which the queue has not seen |
    shares accepted=2 sweeps=0 | a turn waits for ever
share-resend | the sweeper sends the copy of a turn whose waker, or worker, has died |
    shares accepted=2 deaths | a turn waits for ever
share-sweeps | the sweeper wakes turns that no worker has seen in line | shares accepted=2 lags |
    a turn waits for ever
share-ends | the end of a turn gives up its share | shares accepted=2 |
    what has ended keeps its share
share-refills | workers and the sweeper wake a turn where the chain of wakes was cut |
    shares accepted=2 lags | a turn waits for ever
second-look | a creation looks at the barrier after its write, too | deletion | a task is left
barrier-kept | a deletion waits until no process goes by what it had read before | deletion |
    a task is left
barrier-lag | and until the index shows what was written by then | deletion | a task is left
barrier-birth | a barrier counts for what began before its end, also after its end | deletion |
    a task is left
barrier-lapse | a deletion whose barrier has lapsed begins its wait anew | deletion lapses |
    a task is left
barrier-sweeps | a sweep takes back what a dead creator has stored behind a barrier |
    deletion deaths | a task is left for ever
blob-before-commit | what a commit names is stored before it | blobs |
    a reference of a live task names nothing
blob-incarnation | the key of a blob has the incarnation of its task | blobs creations=2 deletions |
    a reference of a live task names nothing
blob-fence | a deletion fences HEAD before it deletes a blob | blobs deletions |
    a reference of a live task names nothing
blob-looks-again |
    a deletion looks at HEAD after it has listed the items, and leaves that incarnation |
    blobs creations=2 deletions | a reference of a live task names nothing |
    creation1: writes > deletion1: queries > deletion1: removes creation1
blob-look-waits | and this look waits for a transaction of which the list may have seen a part |
    blobs creations=2 deletions halves | a reference of a live task names nothing |
    but HEAD > deletion1: queries > deletion1: loads HEAD > removes creation1
blob-before-items | a deletion deletes blobs before the items by which it finds them |
    blobs deletions | a deletion leaves what it cannot find any more
blob-before-head | and lets go of HEAD, by which it is found itself, last | blobs deletions |
    a deletion leaves what it cannot find any more
blob-own-fence | and only if HEAD is still the one that it has fenced |
    blobs creations=2 deletions=2 | a deletion leaves what it cannot find any more |
    deletion1: writes HEAD > deletion2: writes HEAD > deletion1: writes HEAD
blob-uploads | a deletion of all that a caller has includes what it has uploaded |
    blobs purges link=uploaded | an upload is left
blob-rule | the store's rule removes what no task names, or has named |
    blobs attempts deletions deaths keeps=0 | a blob is left for ever
blob-gone | a writer that finds its task deleted deletes what it has stored |
    blobs attempts deletions | a blob of a deleted task is left by one that lives |
    deletion1: removes > attempt1: puts
blob-life | and keeps each blob for as long as a task lives | blobs days keeps=1 |
    a reference of a live task names nothing
blob-forget | a creation that meets an earlier one takes back what it has stored |
    blobs creations=2 deletions | a blob of a deleted task is left by one that lives
snapshot-replaced | and only in the HEAD that was read: what that one names is deleted then |
    snapshots | a snapshot makes a task another one
snapshot-own | who cannot name its snapshot deletes it | snapshots |
    a snapshot that no task needs is left, and nothing has died
snapshot-before-name | a snapshot is stored before HEAD names it | snapshots turns=1 |
    HEAD of a live task names a snapshot that is not stored
snapshot-after-name | and the one before is deleted after that | snapshots |
    HEAD of a live task names a snapshot that is not stored
snapshot-turn | a snapshot is taken only while no turn is open | snapshots |
    HEAD names a snapshot of what an open turn may take back
snapshot-fallback | a reader that does not find the snapshot that it knows reads the whole log |
    snapshots readings | a snapshot makes a task another one
"""


def _without(guard: str, words: str) -> Callable[[], Report]:
    world: Any = _world_of(words)
    is_deletion = isinstance(world, DeletionJob)
    off = guard if is_deletion else tuple(_OFF[guard].items())
    explore: Callable[[], Report] = replace(world, off=off).explore
    return explore


GUARDS = guards_of(_ROWS, _without)
