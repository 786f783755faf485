"""What an operator does with tasks, over every table: twice, cut off, beside others, on many."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from a2a.types import Part, TaskState

from a2a_serverless import errors
from a2a_serverless.clock import SystemClock
from a2a_serverless.http.intake import Intake
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.waiting import wake_due
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import DeletionJob, Owner, count_data, stored_in
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import head_key, task_partition
from a2a_serverless.storage.table import Range, Update
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.head import Head, Operation, plain_state
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.operate.acts import ACTS, Act, Acts, Plan, retry_id
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import KEPT_S, Entry, about, newest
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, FAILED, INPUT_REQUIRED, failed_task, to
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import MemoryQueue, left

S = TaskState
ANN = Caller(user="ann", tenant="acme", extensions=("urn:x",), variables='{"a:B": 1}')
CONTEXT = "talk"
HOOK = "https://receiver.example/"
FAILS, ENDS = to(FAILED), to(COMPLETED)
CONTENT = b"x" * 40_000


class Ticking(SystemClock):
    """The time of this machine, counted from a time of the test's own."""

    def __init__(self, start_ms: int) -> None:
        self._ahead_ms = start_ms - super().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


class Desk:
    """An operator, his storage, and the queue of turns."""

    def __init__(self, storage: DurableStorage, clock: ManualClock) -> None:
        self.storage, self.clock = storage, clock
        self.queue = MemoryQueue(Operation, clock=clock)
        self.jobs = MemoryQueue(PushJob, clock=clock)
        settings = Settings(cancel_timeout_s=0.01, push_events="statuses")
        self.inspector = self._over(storage, settings)
        self.acts = Acts(self.inspector, by="pat")
        # A cancel waits for the agent, in a time that goes on by itself.
        ticking = replace(storage, clock=Ticking(clock.now_ms()))
        self.canceling = Acts(self._over(ticking, settings), by="pat")
        self.owner = TaskFilter(scope=storage.scope.digest)

    def _over(self, storage: DurableStorage, settings: Settings) -> Inspector:
        backends = Backends(storage=storage, operations=self.queue)
        return Inspector(storage, settings, place="the table", backends=backends)

    async def open(self, task_id: str, *, text: str = "go") -> Head:
        opened = await self.storage.open_task(CONTEXT, request(text), task_id=task_id, caller=ANN)
        return opened.head

    async def failed(self, task_id: str, reason: str = "ValueError") -> Head:
        """A task whose only attempt has failed, and whose webhook was not told of its statuses."""
        given: dict[str, Any] = {"url": HOOK, "caller": ANN, "context_id": CONTEXT}
        return await failed_task(self.storage, task_id, **given, reason=reason)

    async def with_file(self) -> None:
        """A task that has failed, with a file in its message."""
        said = request("go")
        said.message.parts.append(Part(raw=CONTENT, media_type="image/png"))
        opened = await self.storage.open_task(CONTEXT, said, task_id="t", caller=ANN)
        await self.storage.commit(opened.head, FAILS)

    async def for_act(self, act: Act, task_id: str) -> Head:
        """A task to which an act fits."""
        is_open = act in ("cancel", "resend")
        return await (self.open(task_id) if is_open else self.failed(task_id))

    async def do(self, act: Act, task_id: str) -> str:
        acts = self.canceling if act == "cancel" else self.acts
        return await acts.on_one(act, task_id, self.storage.scope.digest)

    async def ids(self) -> set[str]:
        """The tasks of the owner that exist."""
        return {row.head.task_id for row in (await self.inspector.lists.page(self.owner)).rows}

    async def journal(self) -> list[Entry]:
        """The acts on this owner's tasks, the oldest first; others share the table."""
        found = await newest(self.storage, limit=1000)
        return [one for one in reversed(found) if one.scope == self.storage.scope.digest]

    async def effect(self, act: Act, head: Head, *, of: int = 1) -> None:
        """Assert that an act was done, once, on one of so many tasks."""
        now = await self.storage.head(head.task_id)
        if act == "delete":
            partition = task_partition(head.scope, head.task_id)
            assert await self.storage.table.all(Range(partition=partition)) == []
            return
        assert now is not None
        match act:
            case "cancel":
                by = present(now.cancel).by
                assert (plain_state(now.state), by) == ("canceled", "operator pat")
            case "resend":
                assert (now.due_at, now.turn.sends) == (self.clock.now_ms(), head.turn.sends)
            case "retry":
                assert now == head
                (new,) = await self.ids() - {head.task_id}
                opened = present(await self.storage.head(new))
                assert (opened.turn.number, opened.context_id) == (1, CONTEXT)
            case "redeliver":
                (push,) = await self.storage.webhooks.all(head.task_id)
                assert (push.cursor, push.given_up, push.told_count) == ((0, 10**9), None, 0)
                assert await self.storage.webhooks.count_open() == of
                await wake_due(self.storage, self.jobs, math.inf)
                own = [job for job in left(self.jobs) if job.task_id == head.task_id]
                assert len(own) == 1


@pytest.fixture
def desk(storage: DurableStorage, clock: ManualClock) -> Desk:
    return Desk(storage, clock)


@pytest.mark.parametrize("act", ACTS)
async def test_an_act_twice_is_harmless(desk: Desk, act: Act) -> None:
    """The second one is refused and changes nothing, or says the same of the same state."""
    head = await desk.for_act(act, "t")
    first = await desk.do(act, "t")
    await desk.effect(act, head)
    if act == "resend":
        assert await desk.do(act, "t") == first
    else:
        with pytest.raises((errors.UnsupportedOperationError, errors.TaskNotFoundError)):
            await desk.do(act, "t")
    await desk.effect(act, head)
    noted = {(one.act, one.task_id, one.by, one.outcome) for one in await desk.journal()}
    assert noted == {(act, "t", "pat", first)}


async def carried_out(acts: Acts, plan: Plan) -> None:
    """Do all of a plan."""
    await acts.step(plan)
    while not plan.is_over:
        await acts.step(plan)


class KilledError(BaseException):
    """The process of an act has ended."""


@pytest.mark.long(one_in=4)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_an_act_that_is_cut_off_is_done_by_the_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, act: Act, *, is_applied: bool
) -> None:
    """Whichever of its requests is its last: nothing is lost or doubled; the journal has both."""
    kills = 0
    for at in range(40):
        name = f"{act}-{is_applied}-{at}"
        head = await desk.for_act(act, name)
        mortal = Mortal(at, is_applied=is_applied)
        with monkeypatch.context() as patch, suppress(KilledError):
            mortal.guard(patch, desk.storage.table, "write", "delete")
            mortal.guard(patch, desk.queue, "send")
            await desk.do(act, name)
        kills += mortal.has_killed
        try:
            await desk.do(act, name)
        except (errors.UnsupportedOperationError, errors.TaskNotFoundError):
            assert mortal.has_killed or act != "resend"
        await desk.effect(act, head)
        for one in await desk.ids():
            await desk.acts.on_one("delete", one, desk.storage.scope.digest)
        entries = [one for one in await desk.journal() if one.task_id == name and one.act == act]
        assert sum(not one.outcome for one in entries) <= 1
        if not mortal.has_killed:
            break
    assert kills >= 3  # the note, the act, the note of its end


class Mortal:
    """A process that ends at one of its requests, before it is made or before its answer."""

    def __init__(self, at: int, *, is_applied: bool = False) -> None:
        self._left = at
        self._is_applied = is_applied
        self.has_killed = False

    def guard(self, patch: pytest.MonkeyPatch, owner: object, *methods: str) -> None:
        """Let the process end when its time has come; nothing is made after."""
        for name in methods:
            patch.setattr(owner, name, partial(self._guarded, getattr(owner, name)))

    async def _guarded(self, method: Callable[..., Awaitable[Any]], *args: Any, **kw: Any) -> Any:
        if self.has_killed:
            raise KilledError
        self.has_killed = self._left == 0
        self._left -= 1
        if not self.has_killed:
            return await method(*args, **kw)
        if self._is_applied:
            await method(*args, **kw)
        raise KilledError


async def test_a_retry_is_the_callers_message_again(desk: Desk) -> None:
    """Caller, parts, context and life are the same, but no webhook; each task is retried once."""
    head = await desk.failed("t")
    said = await desk.do("retry", "t")
    (new,) = await desk.ids() - {"t"}
    assert new in said
    assert "its webhook is not told of it" in said
    log, old = present(await desk.storage.read(new)), present(await desk.storage.read("t"))
    (first, caller), (before, _) = log.fold().opening(1), old.fold().opening(1)
    assert caller == ANN
    assert list(first.message.parts) == list(before.message.parts)
    assert list(first.message.reference_task_ids) == ["t"]
    assert first.message.message_id != before.message.message_id
    assert log.head.expires_at - log.head.created_at == head.expires_at - head.created_at
    assert await desk.storage.webhooks.all(new) == []
    assert [one.params.task_id for one in left(desk.queue)] == [new]
    for task_id, why in (("t", f"before: as {new}"), (new, "It is submitted: only what has")):
        with pytest.raises(errors.UnsupportedOperationError, match=why):
            await desk.do("retry", task_id)
    await desk.storage.commit(log.head, FAILS)
    await desk.do("retry", new)
    assert len(await desk.ids()) == 3


async def test_a_retry_has_its_own_copy_of_the_files(desk: Desk) -> None:
    """It outlives the deletion of the failed task, whose file goes with it."""
    blobs = desk.storage.table.blobs = MemoryBlobs(desk.clock)
    await desk.with_file()
    await desk.do("retry", "t")
    await desk.do("delete", "t")
    (new,) = await desk.ids()
    task = present(await desk.storage.load_task(new))
    assert task.history[0].parts[1].raw == CONTENT
    await desk.do("delete", new)
    assert blobs._contents == {}


@pytest.mark.parametrize(
    ("is_elsewhere", "why"),
    [(False, "names a file that is not stored"), (True, "set A2A_BLOBS as its workers have it")],
    ids=["gone", "elsewhere"],
)
async def test_a_retry_needs_its_file(desk: Desk, *, is_elsewhere: bool, why: str) -> None:
    """A sentence says so, in the journal too, and there is no task."""
    blobs = desk.storage.table.blobs = MemoryBlobs(desk.clock)
    await desk.with_file()
    blobs._contents.clear()
    desk.storage.table.blobs = None if is_elsewhere else blobs
    plan = await desk.acts.plan("retry", desk.owner)
    await carried_out(desk.acts, plan)
    assert (plan.done, len(plan.failed)) == (0, 1)
    assert await desk.ids() == {"t"}
    (entry,) = await desk.journal()
    assert entry.outcome.startswith("not done: ")
    assert why in entry.outcome


async def test_the_callers_own_key_stays_with_the_failed_task(desk: Desk) -> None:
    """A client that repeats its message gets the failed task again, and not the operator's one."""
    intake = Intake(Backends(storage=desk.storage, operations=desk.queue), None)

    async def sent() -> Head:
        given: dict[str, Any] = {"caller": ANN, "idempotency_key": "the client's"}
        return (await intake.create(desk.storage, request("go"), CONTEXT, **given)).head

    head = await desk.storage.commit(await sent(), FAILS)
    await desk.do("retry", head.task_id)
    assert await sent() == head
    assert await desk.ids() == {head.task_id, retry_id(head)}


@pytest.mark.parametrize("context", ["", CONTEXT], ids=["the caller", "the context"])
async def test_nothing_is_tried_again_of_what_is_deleted(desk: Desk, context: str) -> None:
    """While the deletion runs it is refused, and afterwards there is no task."""
    await desk.failed("t")
    job = DeletionJob(desk.storage, Owner(desk.storage.scope.digest, context or None), lag_s=0)
    await job._renew()
    with pytest.raises(errors.BeingDeletedError):
        await desk.do("retry", "t")
    while not (await job.step()).is_done:
        desk.clock.advance(job.pause_s)
    with pytest.raises(errors.TaskNotFoundError):
        await desk.do("retry", "t")
    assert await desk.ids() == set()


async def test_a_cancel_leaves_what_has_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ended after the preview is skipped; one that ends in the cancel keeps its end."""
    heads = {task_id: await desk.open(task_id) for task_id in ("before", "during", "open")}
    plan = await desk.canceling.plan("cancel", desk.owner)
    assert len(plan.rows) == 3
    send = desk.queue.send

    async def ending(operation: Operation) -> None:
        await send(operation)
        if operation.params.task_id == "during":
            await desk.storage.commit(present(await desk.storage.head("during")), ENDS)

    await desk.storage.commit(heads["before"], ENDS)
    monkeypatch.setattr(desk.queue, "send", ending)
    await carried_out(desk.canceling, plan)
    skipped = {"It has ended: nothing is left to cancel.": 1}
    assert (plan.done, dict(plan.skipped), plan.failed.total()) == (2, skipped, 0)
    outcomes = {one.task_id: one.outcome for one in await desk.journal()}
    assert outcomes == {"during": "The task is completed.", "open": "The task is canceled."}


@pytest.mark.parametrize("act", ACTS)
async def test_two_operators_who_do_the_same_do_it_once(desk: Desk, act: Act) -> None:
    """At the same time, on a crowd that both have seen; neither reads that something has failed."""
    heads = [await desk.for_act(act, f"t-{number}") for number in range(6)]
    acts = desk.canceling if act == "cancel" else desk.acts
    other = Acts(acts._inspector, by="kim")
    plans = [(one, await one.plan(act, desk.owner)) for one in (acts, other)]
    assert all(len(plan.rows) == len(heads) for _, plan in plans)
    await asyncio.gather(*(carried_out(one, plan) for one, plan in plans))
    for _, plan in plans:
        assert plan.failed.total() == 0
        assert plan.done + plan.skipped.total() == len(heads)
    assert sum(plan.done for _, plan in plans) >= len(heads)
    if act == "retry":
        assert await desk.ids() == {name for h in heads for name in (h.task_id, retry_id(h))}
    elif act != "cancel":
        for head in heads:
            await desk.effect(act, head, of=len(heads))
    else:
        states = [await desk.storage.head(head.task_id) for head in heads]
        assert [plain_state(one.state) for one in states if one] == ["canceled"] * len(heads)
    entries = await desk.journal()
    assert {one.task_id for one in entries} == {head.task_id for head in heads}
    assert all(one.outcome for one in entries)


async def test_a_turn_in_line_is_canceled_and_not_sent(desk: Desk) -> None:
    """It has no message: `resend` says what it waits for; a cancel takes it out of the line."""
    head = await desk.open("t")
    assert await desk.storage.park(head, "share")
    with pytest.raises(errors.UnsupportedOperationError, match="stands in line"):
        await desk.do("resend", "t")
    await desk.do("cancel", "t")
    now = present(await desk.storage.head("t"))
    assert (plain_state(now.state), now.turn.parked) == ("canceled", "")


async def test_a_deletion_of_the_caller_takes_the_journal(desk: Desk) -> None:
    """What names the caller goes, and is not exported. After ninety days an act is forgotten."""
    scope = desk.storage.scope
    await desk.failed("t")
    await desk.do("redeliver", "t")
    assert len(await about(desk.storage, scope.digest, "t", limit=10)) == 1
    assert (await count_data(desk.storage)).items == 1
    assert [one async for one in stored_in(desk.storage)] == [{"task_id": "t"}]
    job = DeletionJob(desk.storage, Owner(scope.digest), lag_s=0)
    while not (await job.step()).is_done:
        desk.clock.advance(job.pause_s)
    assert await desk.journal() == []
    assert (await count_data(desk.storage)).is_nothing
    desk.clock.advance(60)
    await desk.open("later")
    await desk.do("resend", "later")
    desk.clock.advance(KEPT_S - 1)
    assert len(await desk.journal()) == 1
    desk.clock.advance(2)
    assert await desk.journal() == await about(desk.storage, scope.digest, "later", limit=10) == []


async def test_a_run_finishes_deletions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list finds what is left of their tasks: the journal does."""
    head = await desk.failed("t")
    with monkeypatch.context() as patch:
        Mortal(0).guard(patch, desk.storage.table, "delete")
        with pytest.raises(KilledError):
            await desk.do("delete", "t")
    plan = await desk.acts.plan("delete", desk.owner)
    assert plan.rows == ()
    await carried_out(desk.acts, plan)
    await desk.effect("delete", head)
    (entry,) = await desk.journal()
    assert entry.outcome == "It was cut off, and finished later."


async def test_what_a_removed_head_has_left_is_deleted(desk: Desk) -> None:
    """Log, webhooks and all; the journal has it; one made anew with its id is another task."""
    head = await desk.failed("t")
    plan = await desk.acts.plan("delete", desk.owner)
    await desk.storage.table.delete([head_key(head.scope, "t")])
    assert await desk.do("delete", "t") == "What was left of it is deleted."
    await desk.effect("delete", head)
    with pytest.raises(errors.TaskNotFoundError):
        await desk.do("delete", "t")
    assert [one.outcome for one in await desk.journal()] == ["What was left of it is deleted."]
    again = await desk.failed("t")
    await carried_out(desk.acts, plan)
    assert (plan.done, dict(plan.skipped)) == (0, {"It has gone meanwhile.": 1})
    assert (await desk.storage.head("t")) == again


@pytest.mark.long(one_in=4)
@pytest.mark.parametrize(
    "chosen",
    [
        None,
        {},
        {"state": "failed", "since": "1h", "reason": "not started"},
        {"attention": "failed", "until": "0s"},
        {"text": "t-", "since": "1h"},
    ],
    ids=["of one owner", "of all", "by state", "by attention", "by text"],
)
async def test_a_bounded_run_goes_on(desk: Desk, chosen: dict[str, str] | None) -> None:
    """No task is missed or taken twice, in the order of changes, of creation and of the index."""
    context = f"c-{desk.storage.scope.digest}"
    for number in range(7):
        opened = await desk.storage.open_task(context, request("go"), task_id=f"t-{number}")
        await desk.storage.commit(opened.head, FAILS)
        desk.clock.advance(number % 2)
    desk.clock.advance(1)
    which = desk.owner if chosen is None else TaskFilter(context=context, **chosen)
    seen, after = list[str](), ""
    while not seen or after:
        plan = await desk.acts.plan("retry", which, most=3, after=after)
        await carried_out(desk.acts, plan)
        assert plan.done == len(plan.rows) <= 3
        seen += [row.head.task_id for row in plan.rows]
        after = plan.after
    assert sorted(seen) == [f"t-{number}" for number in range(7)]


async def test_what_no_longer_needs_attention_is_skipped(desk: Desk) -> None:
    """A webhook that was told again or deleted; a turn that a worker took; another reason."""
    desk.clock.advance(1)
    for task_id in ("one", "two", "three"):
        await desk.failed(task_id)
    chosen = replace(desk.owner, attention="untold", reason="status 503")
    plan = await desk.acts.plan("redeliver", chosen)
    assert {row.head.task_id for row in plan.rows} == {"one", "two", "three"}
    assert (await desk.acts.plan("redeliver", replace(chosen, reason="status 5"))).rows == ()
    await desk.do("redeliver", "one")
    await desk.storage.webhooks.delete("three", "hook")
    await carried_out(desk.acts, plan)
    assert (plan.done, plan.skipped.total()) == (1, 2)
    assert "It is failed, and none of those that were chosen." in plan.skipped
    scope = desk.storage.scope.digest
    with pytest.raises(errors.UnsupportedOperationError, match="nothing to redeliver"):
        await desk.acts.on_one("redeliver", "three", scope, config_id="hook")
    assert (await desk.inspector.lists.page(chosen)).rows == ()
    sent = await desk.open("sent")
    assert await desk.storage.postpone(sent, due_at=desk.clock.now_ms(), sends=1)
    plan = await desk.acts.plan("resend", replace(desk.owner, attention="again"))
    assert [row.head.task_id for row in plan.rows] == ["sent"]
    await desk.storage.commit(present(await desk.storage.head("sent")), ENDS)
    await carried_out(desk.acts, plan)
    assert (plan.done, plan.skipped.total()) == (0, 1)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    "values", [{"version": "x"}, {"needs": 99}], ids=["damaged", "of a newer release"]
)
async def test_what_is_odd_hides_nothing(desk: Desk, act: Act, values: dict[str, Any]) -> None:
    """The others of a crowd are acted on; a sentence is about that one, and it stays as it is."""
    heads = [await desk.for_act(act, name) for name in ("fine", "odd")]
    key = head_key(heads[1].scope, "odd")
    await desk.storage.table.write(Update(key=key, values=values))
    before = await desk.storage.table.get(key)
    acts = desk.canceling if act == "cancel" else desk.acts
    plan = await acts.plan(act, desk.owner)
    await carried_out(acts, plan)
    assert (plan.done, plan.skipped.total()) == (1, 0)
    assert plan.failed.total() == len(plan.rows) - plan.done
    if "needs" in values:
        said = r"A newer release wrote it, .* format 3, .*: act with the newest release"
        with pytest.raises(errors.UnsupportedOperationError, match=said):
            await desk.do(act, "odd")
        with pytest.raises(errors.UnsupportedOperationError, match="A newer release"):
            await acts.on_one(act, "odd", heads[1].scope, is_dry=True)
    else:
        with pytest.raises(errors.UnreadableTaskError, match="odd"):
            await desk.do(act, "odd")
    assert await desk.storage.table.get(key) == before
    assert len(await desk.ids()) == 1 + ("needs" in values) - (act == "delete") + (act == "retry")
    assert [one.task_id for one in await desk.journal()] == ["fine"]


async def test_the_first_of_several_messages_is_tried_again(desk: Desk) -> None:
    """The answer says so: the others answered questions of the old task."""
    head = await desk.open("t", text="book a flight")
    asks = to(INPUT_REQUIRED, "when?", token="a", claims=True, ends_turn=True)
    head = await desk.storage.commit(head, asks)
    answer = request("friday")
    answer.message.task_id = "t"
    head = await desk.storage.commit(head, Commit(entries=(TurnOpened(answer, ANN),)))
    await desk.storage.commit(head, FAILS)
    assert "with the first of its 2 messages" in await desk.do("retry", "t")
    (new,) = await desk.ids() - {"t"}
    log = present(await desk.storage.read(new))
    assert log.fold().opening(1)[0].message.parts[0].text == "book a flight"
