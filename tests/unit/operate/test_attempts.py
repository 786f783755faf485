"""What a task's page says of attempts, of the waits between them, and of the lines of each."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import SendMessageRequest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Restarted, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import ASLEEP, LOST, SHUTDOWN, AttemptEnd, Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit, Timing, advance
from a2a_serverless.tasks.turns import turns_of
from a2a_serverless.worker import RetryLater, TaskContext, Worker
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lines import LogLine, by_attempt
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.view import _outcome as outcome
from a2a_serverless_tools.operate.view import _wait_text as wait_text
from a2a_serverless_tools.operate.view import why
from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.clock import PacedClock
from tests.support import commits
from tests.support.clocks import ManualClock
from tests.support.heads import with_fields
from tests.support.memory import memory_storage
from tests.support.present import present
from tests.unit.operate.timelines import timeline_of
from tests.unit.tasks.heads import claimed, opened
from tests.unit.worker.test_steps import Handle, Stand

TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
ANN = Scope.of("", "ann")


def life(handle: Handle, *, passed_s: float = 0, **how: Any) -> Timeline:
    """A task of ann's as it is shown after its turn; `how`: of `send`, else settings."""
    agent = type("Own", (Worker,), {"handle": lambda _, ctx: handle(ctx)})
    sending = {name: how.pop(name) for name in ("cancel_after", "kill_after") if name in how}
    with AgentBench(agent, **how) as bench:
        run = bench.send("Two days\nin Lisbon", user="ann", **sending)
        bench.pass_time(passed_s)
        inspector = Inspector(bench._backends.storage, Settings(), place="here")
        (shown,) = bench._process.run(inspector.timelines(run.head.task_id, ANN.digest))
    return shown


def told(shown: Timeline) -> list[str]:
    """The attempts of a task's only turn with the waits before and after, without times."""
    (turn,) = shown.turns
    said: list[str] = []
    for attempt in turn.attempts:
        said += [wait_text(attempt.wait, shown.looked_at)] if attempt.number > 1 else []
        said.append(re.sub(r" \(correlation id .*\)", "", outcome(attempt)))
    said += [wait_text(turn.wait, shown.looked_at)] if turn.wait else []
    return [TIMES.sub("TIME", text) for text in said]


def failing_once(error: Exception) -> Handle:
    """An agent whose first attempt raises."""
    errors = [error]

    async def handle(ctx: TaskContext) -> None:
        if errors:
            raise errors.pop()
        await ctx.complete("done")

    return handle


PLACE = r"at tests/unit/operate/test_attempts.py, line \d+, in handle"


def test_an_error_is_followed_by_the_wait_for_the_next_try() -> None:
    """With the place of the error, and the time before which the next attempt could not start."""
    shown = life(failing_once(TimeoutError()), retry_base_s=30)
    first, wait, last = told(shown)
    assert re.fullmatch(f"gave back: TimeoutError {PLACE}", first)
    next_try = r"waited [\d.]+ m?s for the next try after TimeoutError, not before TIME"
    assert re.fullmatch(next_try, wait)
    assert last == "ended the turn"
    assert (shown.asked.caller, shown.asked.line) == ("ann", "Two days")
    assert why(shown) == ""


def test_a_lost_attempt_may_have_worked_on_after_its_last_commit() -> None:
    """The wait after it is at most the time since; its own length is not known."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact("half", text="half")
        await ctx.complete("done")

    shown = life(handle, kill_after=1, visibility_s=30)
    (lost, _) = shown.turns[0].attempts
    assert told(shown) == ["lost", f"waited at most 30.0 s for {SILENT}", "ended the turn"]
    assert (lost.outcome, lost.took_ms) == ("lost", None)


def test_a_sleep_is_a_wait_and_no_time_of_an_attempt() -> None:
    """With its end; the sweeper wakes the turn up to a minute late."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(600)
        await ctx.complete("done")

    shown = life(handle)
    asleep, slept, _ = told(shown)
    assert asleep == "asleep until TIME"
    assert re.fullmatch(r"slept 1[01] min \d+ s, until TIME(, of which .* for a worker)?", slept)
    assert sum(one.took_ms or 0 for one in shown.turns[0].attempts) < 5_000


async def shown_of(storage: DurableStorage, task: Head) -> Timeline:
    """A task as it is shown after what a test has done with it."""
    inspector = Inspector(storage, Settings(), place="here")
    (shown,) = await inspector.timelines(task.task_id, task.scope)
    return shown


async def test_a_turn_that_is_handed_over_waits_for_the_next_process() -> None:
    """Each step that does not fit into its process any more begins in the next one."""

    async def handle(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.step(f"part {number}", stand.last, 100)
        await ctx.complete("done")

    stand = Stand(handle, clock=PacedClock())
    await stand.send()
    await stand.work(deadline_s=150)
    shown = await shown_of(stand.bench.storage, stand.task)
    handed = "handed over to the next process"
    wait = "waited 0 ms for the process to which it was handed over"
    assert told(shown) == [*(handed, wait) * 3, "ended the turn"]
    attempts = shown.turns[0].attempts
    recorded = [[step.name for step in one.recorded] for one in attempts]
    assert recorded == [["part 0"], ["part 1"], ["part 2"], []]
    assert [one.kept for one in attempts] == [0, 1, 2, 3]


def test_a_cancel_during_an_attempt_is_its_end() -> None:
    """The attempt itself ends the turn, and nobody waits after it."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact("half", text="half")
        await asyncio.sleep(3_600)

    shown = life(handle, cancel_after=1)
    assert (told(shown), shown.state) == (["ended the turn"], "canceled")
    assert why(shown) == "asked for by an unnamed user"


def test_a_service_that_is_away_is_waited_for() -> None:
    """The reason has what the turn waits for, and no attempt is charged with the wait."""
    shown = life(failing_once(RetryLater(120, "the index is built")))
    first, wait, _ = told(shown)
    assert first.startswith("gave back: RetryLater: the index is built at tests/")
    next_try = "for the next try after RetryLater: the index is built, not before TIME"
    assert re.fullmatch(rf"waited 2 min \d+ s {next_try}", wait)
    assert sum(one.took_ms or 0 for one in shown.turns[0].attempts) < 5_000


def test_a_failed_task_says_why_and_where() -> None:
    """Of its last attempt, with the id that its client was given; the text by the setting alone."""

    async def handle(ctx: TaskContext) -> None:
        raise LookupError("customer 4711")

    for keeps, text in ((False, ""), (True, ": customer 4711")):
        shown = life(handle, max_attempts=2, keep_error_texts=keeps)
        correlation = rf"\(correlation id {shown.head.failure.correlation_id}\)"
        ended = f"attempt 2 ended with LookupError {PLACE}{text} {correlation}"
        assert re.fullmatch(ended, why(shown))
        assert ("customer 4711" in repr(shown)) is keeps


async def test_a_turn_stood_in_line_and_then_ran_alone() -> None:
    """First for a share of the workers, then, after its worker died, in the quarantine queue."""
    clock = ManualClock(1_795_313_640_000)
    storage = memory_storage(clock=clock)
    head = await commits.opened(storage)
    clock.advance(2)
    assert await storage.park(head, "share")
    shown = await shown_of(storage, head)
    assert why(shown) == "in line for a place of the workers: no turns of this caller before it"
    clock.advance(3)
    requeued = present(await storage.requeue(await commits.newest(storage, head)))
    first = await storage.commit(requeued, commits.claim("a", worker="vm 1"))
    in_line = "in line for a place of the workers or its conversation, and for a worker"
    assert waits(await shown_of(storage, head)) == [f"waited 5.0 s {in_line}"]
    clock.advance(60)
    second = await storage.commit(first, commits.claim("b", worker="vm 2"))
    assert second.turn.alone
    shown = await shown_of(storage, head)
    assert [one.outcome for one in shown.turns[0].attempts] == ["lost", "running"]
    assert waits(shown)[1].startswith("waited at most 1 min 0 s for its message to come again")
    assert why(shown) == "attempt 2 has it, 0 ms so far"


OPENING = TurnOpened(SendMessageRequest())
CANCELED, FAILED = commits.status(commits.CANCELED), commits.status(commits.FAILED)
END = AttemptEnd(token="A", reason="ValueError", correlation_id="c", at=2_000, until=12_000)


def of(*records: Record, head: Head | None = None, now_ms: int = 60_000) -> Timeline:
    return timeline_of(head or opened(), records, now_ms=now_ms)


def opening(at: int | None = 0) -> Record:
    return Record(version=1, entries=(OPENING,), at=at)


def claim(version: int, token: str, at: int | None, end: AttemptEnd | None = None) -> Record:
    entries = (Restarted(1),) if end else ()
    return Record(version=version, entries=entries, token=token, at=at, ended=end, worker="w")


def released(end: AttemptEnd) -> Head:
    return with_fields(claimed(token=end.token), released=end)


def waits(shown: Timeline) -> list[str]:
    (turn,) = shown.turns
    found = [*(one.wait for one in turn.attempts), *([turn.wait] if turn.wait else [])]
    return [wait_text(wait, shown.looked_at) for wait in found]


def test_an_open_wait_grows_until_now() -> None:
    """That of a turn which was given back, with the part in which a worker could have had it."""
    records = (opening(), claim(2, "A", 1_000))
    shown = of(*records, head=released(END), now_ms=9_000)
    next_try = "for the next try after ValueError, not before 1970-01-01T00:00:12.000Z"
    assert waits(shown) == ["waited 1.0 s for a worker", f"waits 7.0 s so far {next_try}"]
    late = waits(of(*records, head=released(END), now_ms=32_000))[1]
    assert late.startswith("waits 30.0 s so far")
    assert late.endswith(", of which 20.0 s for a worker")
    assert why(shown).endswith("; the last attempt ended with ValueError (correlation id c)")


def test_a_cancel_while_a_turn_waits_changes_no_attempt() -> None:
    """The attempt has ended before, with its reason; the wait ends with the turn."""
    canceled = Commit(entries=(CANCELED,), ends_turn=True)
    head = advance(released(END), canceled, now_ms=7_000, timing=Timing()).head
    end = Record(version=3, entries=(CANCELED, TurnEnded()), at=7_000)
    (turn,) = of(opening(), claim(2, "A", 1_000), end, head=head).turns
    (attempt,), wait = turn.attempts, present(turn.wait)
    assert (attempt.outcome, attempt.over_at, attempt.took_ms) == ("gave back", 2_000, 1_000)
    assert (wait.is_open, wait.took_ms(0), turn.paused_ms) == (False, 5_000, 5_000)


def test_a_failure_by_another_writer_is_no_time_of_the_attempt() -> None:
    """The sweeper fails a turn that was given back: the attempt has ended when it said so."""
    end = Record(version=3, entries=(FAILED, TurnEnded()), at=90_000, ended=END)
    (turn,) = of(opening(), claim(2, "A", 1_000), end).turns
    (attempt,) = turn.attempts
    assert (attempt.outcome, attempt.took_ms) == ("failed", 1_000)
    assert present(turn.wait).took_ms(0) == 88_000


DAMAGED = "waited at most 4.0 s, as the record of the attempt before is damaged"
SILENT = "its message to come again, as its attempt said nothing after its last commit"


STOPPED = "waited 3.0 s for another worker, as its own was told to stop"
SLEPT = "slept 3.0 s, until 1970-01-01T00:00:04.000Z, of which 1.0 s for a worker"


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({"reason": SHUTDOWN, "at": 2_000}, STOPPED),
        ({"reason": ASLEEP, "at": 2_000, "until": 4_000}, SLEPT),
        ({"reason": LOST}, f"waited at most 4.0 s for {SILENT}"),
        ({"reason": "ValueError"}, DAMAGED),
        ({"reason": "ValueError", "token": "another"}, DAMAGED),
    ],
)
def test_each_end_has_a_wait_of_its_own(end: dict[str, Any], text: str) -> None:
    """A shutdown, a sleep, a lost process, and an end whose time or record is damaged."""
    ended = AttemptEnd(**{"token": "A", **end})
    records = (opening(), claim(2, "A", 1_000), claim(3, "B", 5_000, ended))
    assert waits(of(*records, head=claimed(token="B")))[1] == text


def test_an_end_may_be_older_than_the_commit_that_claims() -> None:
    """A failure, a sleep: its time is taken before the claim, which one commit may say with it."""
    end = AttemptEnd(token="A", reason="ValueError", at=998, until=3_000)
    shown = of(opening(), claim(2, "A", 1_000), claim(3, "B", 5_000, end), head=claimed(token="B"))
    assert shown.turns[0].attempts[0].took_ms == 0
    assert waits(shown)[1].startswith("waited 4.0 s for the next try after ValueError")


def test_a_first_attempt_waited_in_line_or_behind_a_turn() -> None:
    """In line as far as HEAD shows it; behind the turn before until that had ended."""
    left = with_fields(opened(), parked="share", waits_since=5)
    shown = of(opening(), head=left, now_ms=3_000)
    text = "in line for a place of the workers or its conversation, and for a worker"
    assert waits(shown) == [f"waits 3.0 s so far {text}"]
    assert why(shown) == "in line for a place of the workers"
    requeued = with_fields(claimed(token="A"), sends=1, requeued=1)
    assert waits(of(opening(), claim(2, "A", 4_000), head=requeued)) == [f"waited 4.0 s {text}"]
    ended = Record(version=4, entries=(TurnEnded(),), token="A", at=5_000)
    second = Record(version=3, entries=(OPENING,), at=2_000)
    records = (opening(), claim(2, "A", 1_000), second, ended)
    _, behind = turns_of(with_fields(opened(), number=3), records)
    text = "waits 7.0 s so far for the end of the turn before it, of which 4.0 s for a worker"
    assert wait_text(present(behind.wait), 9_000) == text


def test_clocks_that_differ_give_no_negative_time() -> None:
    """Each writer stores the time of its own clock: what seems to go back takes no time."""
    early = AttemptEnd(token="A", reason="ValueError", at=50_000, until=60_000)
    records = (
        opening(at=100_000),
        claim(2, "A", 40_000),
        claim(3, "B", 30_000, early),
        Record(version=4, entries=(FAILED, TurnEnded()), token="B", at=20_000),
    )
    shown = of(*records, head=replace(claimed(token="B"), created_at=50), now_ms=10)
    (turn,) = shown.turns
    lengths = [one.took_ms for one in turn.attempts] + [turn.queued_ms, turn.paused_ms]
    assert lengths == [10_000, 0, 0, 0]
    assert [one.wait.took_ms(10) for one in turn.attempts] == [0, 0]
    assert shown.row.took_ms(10) == 0


def test_times_that_are_lost_leave_the_rest() -> None:
    """A damaged commit has no time: its attempts and waits are named, without a length."""
    records = (opening(at=None), claim(2, "A", None), claim(3, "B", None, END))
    shown = of(*records, head=claimed(token="B"))
    unknown = "a time that is not known"
    next_try = "for the next try after ValueError, not before 1970-01-01T00:00:12.000Z"
    assert waits(shown) == [f"waited {unknown} for a worker", f"waited {unknown} {next_try}"]
    assert why(shown) == "attempt 2 has it"
    nothing = of(head=claimed(token="B"))
    assert (nothing.turns, why(nothing)) == ((), "no attempt at it is known")


def line(at: int, work: object, action: str = "said", **fields: Any) -> LogLine:
    own = {"correlation_id": work, **fields}
    return LogLine(at=at, level="INFO", action=action, message=f"{work} at {at}", fields=own)


def times_of(records: list[Record], lines: list[LogLine]) -> dict[int, list[int]]:
    """The times of the lines of each attempt, by its claim."""
    turns = turns_of(claimed(token="Z"), records)
    return {version: [one.at for one in own] for version, own in by_attempt(turns, lines).items()}


def test_lines_stand_with_their_attempt() -> None:
    """By the id that a failed one has stored; else by the last delivery before the claim."""
    failed = AttemptEnd(token="A", reason="ValueError", correlation_id="first", at=9_000)
    lost = AttemptEnd(token="B", reason=LOST)
    records = [opening(), claim(2, "A", 5_000), claim(3, "B", 20_000, failed)]
    records.append(claim(4, "C", 60_000, lost))
    lines = [
        line(4_990, "first", "attempt", turn=1, attempt=1),
        line(9_010, "first", "retry", turn=1),
        line(12_000, "died before its claim", "attempt", turn=1, attempt=2),
        line(19_900, "second", "attempt", turn=1, attempt=2),
        line(21_000, "second"),
        line(59_000, "third", "attempt", turn=1, attempt=3),
        line(61_000, "third", turn=1),
        line(62_000, "the sweeper", turn=1),
        line(63_000, ["damaged"], turn={}),
    ]
    of_attempts = {2: [4_990, 9_010], 3: [19_900, 21_000], 4: [59_000, 61_000]}
    assert times_of(records, lines) == of_attempts | {0: [12_000, 62_000, 63_000]}


def test_a_delivery_that_went_on_with_the_next_turn_has_two_attempts() -> None:
    """Its lines are parted by their turn; one without a turn could be of either."""
    records = [
        opening(),
        claim(2, "A", 1_000),
        Record(version=3, entries=(OPENING,), at=2_000),
        Record(version=4, entries=(TurnEnded(),), token="A", at=3_000),
        claim(5, "B", 4_000),
    ]
    lines = [
        line(900, "one", "attempt", turn=1),
        line(3_100, "one", "turn_ended", turn=1),
        line(3_900, "one", "attempt", turn=3),
        line(4_100, "one"),
        line(4_200, "one", turn=3),
    ]
    assert times_of(records, lines) == {2: [900, 3_100], 5: [3_900, 4_200], 0: [4_100]}


def test_without_times_or_attempts_no_line_is_anyones() -> None:
    """A damaged claim has no time; a task that waits has no attempt."""
    lines = [line(900, "one", "attempt", turn=1)]
    assert times_of([opening()], lines) == {0: [900]}
    assert times_of([opening(), Record(version=2, entries=(), token="A")], lines) == {0: [900]}
