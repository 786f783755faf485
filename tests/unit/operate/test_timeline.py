"""Timelines of logs that the rules make, and of damaged ones and those of newer releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless.tasks import entries as log
from a2a_serverless.tasks.blobs import Blob, BlobOwner
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, Recorded, Restarted, TurnEnded
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import LOST, AttemptEnd, Head
from a2a_serverless.tasks.push import Push
from a2a_serverless.tasks.rules import NewTask, Timing, open_task
from a2a_serverless_tools.operate.lines import LogLine
from a2a_serverless_tools.operate.timeline import Timeline, _Holder, with_logs
from a2a_serverless_tools.operate.view import _changed as changed
from a2a_serverless_tools.operate.view import _delivery as delivery
from a2a_serverless_tools.operate.view import _outcome as outcome
from a2a_serverless_tools.operate.view import _starts as starts
from a2a_serverless_tools.operate.view import _webhook, tree
from a2a_serverless_tools.operate.view import _what_holds as what_holds
from tests.support.commits import AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, WORKING, status
from tests.support.heads import with_fields
from tests.support.messages import request
from tests.unit.operate.timelines import timeline_of
from tests.unit.tasks.heads import claimed, opened

CHUNK = ArtifactWritten(Artifact(artifact_id="a"), append=True)
REPLY = log.Replied(Message(message_id="r"))
OPENING = log.TurnOpened(SendMessageRequest())
HOOK = TaskPushNotificationConfig(id="c", task_id="t", url="https://example.com/")
PUSH = Push(scope="s", incarnation="i", config=HOOK, version=1)


def recorded(name: str, key: str = "", number: int = 1) -> Recorded:
    return Recorded(log.StepId(name, key, number), "json", b"1")


def record(version: int, *entries: Entry, token: str | None = None, **more: object) -> Record:
    made = Record(version=version, entries=entries, token=token)
    return replace(made, **more)  # type: ignore[arg-type]


def of(*records: Record, head: Head | None = None) -> Timeline:
    return timeline_of(head or opened(), records)


def test_each_restart_discards_what_still_stands() -> None:
    """Attempts' changes since the turn began, once; messages of others stay."""
    shown = of(
        record(1, CHUNK, token="before"),
        record(2, log.MessageAppended(Message())),
        record(3, CHUNK, token="A"),
        record(4, log.MessageAppended(Message())),
        record(5, Restarted(2), CHUNK, token="B"),
        record(6, TurnEnded(), token="B"),
        record(7, REPLY, token="B"),
        record(8, Restarted(2), token="C"),
        record(9, Restarted(2), token="D"),
    )
    discards = {c.version: c.changes[0].discards for c in shown.commits if c.changes[0].discards}
    assert discards == {5: (3,), 8: (5, 7)}
    assert shown.commits[-1].changes[0].base == 2


def test_the_holder_is_the_attempt_of_head() -> None:
    """Since its claim, with its last commit; without a name where it is lost."""
    head = claimed(token="A")
    named = [record(1, at=1), record(2, token="A", worker="host 1", at=2), record(3, token="A")]
    lease = {"lease_until": 300_000}
    known = _Holder(worker="host 1", since=2, seen_at=2, **lease)
    assert of(*named, head=head).holder == known
    unnamed = [record(1, at=1), record(2, token="A", at=2)]
    assert of(*unnamed, head=head).holder == replace(known, worker="")
    assert of(record(1), head=head).holder == _Holder(worker="", since=None, **lease)
    assert of(record(1), head=opened()).holder is None


def test_the_last_sign_of_a_holder_is_a_commit_or_a_renewal() -> None:
    """The lease tells when it was renewed; not after the sweeper has moved the due time."""
    records = [record(1, at=1), record(2, token="A", worker="host 1", at=2_000)]
    renewed = replace(claimed(token="A"), due_at=480_000)
    held = timeline_of(renewed, records, lease_s=300).holder
    assert held == _Holder(worker="host 1", since=2_000, seen_at=180_000, lease_until=480_000)
    resent = timeline_of(replace(renewed, due_at=5), records, lease_s=300).holder
    assert resent == _Holder(worker="host 1", since=2_000, seen_at=2_000, lease_until=5)
    sent = timeline_of(with_fields(renewed, sends=2), records, lease_s=300).holder
    assert sent == _Holder(worker="host 1", since=2_000, seen_at=2_000, lease_until=None)


def test_parts_that_are_elsewhere_are_counted() -> None:
    """Whichever entry refers to them."""
    blob = Blob.of(b"x", BlobOwner("s" * 32, "t", "i" * 12))
    elsewhere = Part(url=blob.reference)
    message = Message(parts=[elsewhere, Part(text="here")])
    working = status(WORKING, "x")
    working.status.message.CopyFrom(message)
    chunk = Artifact(artifact_id="a", parts=[elsewhere] * 2)
    entries: list[Entry] = [ArtifactWritten(chunk, append=True), log.Replied(message), working]
    entries += [log.MessageAppended(message), recorded("s").offloaded(blob.place)]
    (commit,) = of(record(1, *entries)).commits
    assert [change.references for change in commit.changes] == [2, 1, 1, 1, 1]
    names = [change.name for change in commit.changes]
    assert names == ["chunk", "reply", "status", "message", "record"]
    assert changed(commit.changes[-1]).endswith(" bytes, its value elsewhere")


@pytest.mark.parametrize(("kind", "shown"), [(b"Z", "Z"), (b"\xff", "0xff"), (b"\x1b", "\x1b")])
def test_an_unknown_entry_keeps_its_kind(kind: bytes, shown: str) -> None:
    """It is never dropped; a critical one is named among what cannot be read."""
    plain, critical = log.Unknown(kind, 0, b"xy"), log.Unknown(kind, 0x80, b"")
    made = of(record(1, plain), record(2, critical))
    changes = [commit.changes[0] for commit in made.commits]
    assert [(c.name, c.subject, c.size, c.is_critical) for c in changes] == [
        ("unknown", shown, 8, False),
        ("unknown", shown, 6, True),
    ]
    assert made.unreadable == (f"version 2 has an unknown entry of kind {shown!r}",)


def test_turns_and_their_attempts() -> None:
    """A turn has the attempts from its first claim to its end; a later message waits behind it."""
    opening = log.TurnOpened(SendMessageRequest(), log.Caller("ann"))
    completed, auth = status(COMPLETED), status(AUTH_REQUIRED)
    lost = AttemptEnd(token="A", reason=LOST)
    shown = of(
        record(1, opening, at=0),
        record(2, token="A", at=100, worker="host 1"),
        record(3, Restarted(1), token="B", at=2_100, worker="host 2", ended=lost),
        record(4, auth, token="B", at=2_200),
        record(5, opening, at=3_000),
        record(6, TurnEnded(), token="B", at=4_000),
        record(7, completed, TurnEnded(), token="C", at=4_500),
    )
    first, second = shown.turns
    assert (first.number, first.by, first.waited_ms, first.ended) == (1, "ann", 100, 6)
    assert [commit.ended_itself for commit in shown.commits] == [False] * 7
    assert shown.changed_at == 4_500
    assert [(a.number, a.worker, a.outcome, a.over_at) for a in first.attempts] == [
        (1, "host 1", "lost", 2_100),
        (2, "host 2", "ended the turn", 4_000),
    ]
    assert (second.opened_at, second.began_at, second.ended_at) == (3_000, 4_000, 4_500)


def test_an_attempt_that_the_task_ended_without() -> None:
    """A cancel by the API cuts it short; a failure by another writer tells how it ended."""
    canceled, failed = status(CANCELED), status(FAILED)
    claim = record(2, token="A")
    (cut,) = of(record(1, OPENING), claim, record(3, canceled, TurnEnded())).turns
    assert (cut.attempts[0].outcome, cut.ended) == ("cut short", 3)
    end = AttemptEnd(token="A", reason="ValueError", correlation_id="c1")
    (gave_up,) = of(record(1, OPENING), claim, record(3, failed, TurnEnded(), ended=end)).turns
    assert (gave_up.attempts[0].outcome, gave_up.attempts[0].reason) == ("failed", "ValueError")
    at_the_end = record(3, failed, TurnEnded(), token="A", ended=end)
    itself = of(record(1, OPENING), claim, at_the_end, head=replace(opened(), status_at=5))
    assert (itself.commits[-1].ended_itself, itself.changed_at) == (True, 5)


def test_a_turn_with_records_tells_how_it_went_on() -> None:
    """What each attempt has recorded, how it has left, and after which record the next goes on."""
    asleep = AttemptEnd(token="A", reason="asleep", at=300, until=60_300)
    lost = AttemptEnd(token="B", reason=LOST)
    handed = AttemptEnd(token="C", reason="handover", at=63_000)
    working = status(WORKING)
    records = (
        record(1, OPENING, at=0),
        record(2, working, token="A", at=100, worker="host 1"),
        record(3, *(recorded("plan", number=n + 1) for n in range(6)), token="A", at=200),
        record(4, recorded("ctx.sleep"), token="A", at=300),
        record(5, token="B", at=61_300, worker="host 2", ended=asleep),
        record(6, recorded("ask", "Oslo"), token="B", at=61_400),
        record(7, CHUNK, token="B", at=61_500),
        record(8, Restarted(6), working, token="C", at=62_500, ended=lost),
        record(9, recorded("write"), token="C", at=63_000),
        record(10, token="D", at=64_000, ended=handed),
    )
    head = with_fields(claimed(token="D"), checkpoint=10, sends=2, requeued=2)
    shown = timeline_of(head, records)
    assert [line.text for line in tree(shown)[0].below if line.text.startswith("attempt")] == [
        "attempt 1 on host 1, 200 ms: asleep until 1970-01-01T00:01:00.300Z",
        "attempt 2 on host 2, went on after record 7 (ctx.sleep): lost; version 7 discarded",
        "attempt 3, went on after record 8 (ask [Oslo]), 500 ms: handed over to the next process",
        "attempt 4, went on after record 9 (write), 0 ms so far: has the claim",
    ]
    told = "1 (open), attempts 1 since its last record, 9 records in all, requeued 2 times"
    assert starts(shown) == told
    assert changed(shown.commits[5].changes[0]).startswith("record of ask [Oslo], ")
    slept, _, went, _ = (outcome(one) for one in shown.turns[0].attempts)
    assert slept == "asleep until 1970-01-01T00:01:00.300Z"
    assert went == "handed over to the next process"
    woken = with_fields(claimed(token="A"), released=asleep, sends=1, requeued=1)
    held = what_holds(timeline_of(woken, records[:4]))
    assert held == "no worker; woken from its sleep, and waits for one"


def test_a_turn_that_starts_over_has_no_records() -> None:
    """What its attempts have recorded before is told, and counts no more."""
    over = record(4, Restarted(1), token="B", at=9, ended=AttemptEnd(token="A", reason="X", at=8))
    opening, planned = record(1, OPENING, at=0), record(3, recorded("plan"), token="A", at=2)
    shown = of(opening, record(2, token="A", at=1), planned, over)
    assert (shown.turns[0].records, shown.commits[-1].changes[0].discards) == ({}, (3,))
    assert [(step.id.name, step.is_discarded) for step in shown.steps] == [("plan", True)]


def test_the_first_step_of_a_turn_took_no_longer_than_since_its_message() -> None:
    """The first attempt claims with its first commit, which may be the one that has the step."""
    opening, book = record(1, OPENING, at=100), record(3, recorded("book"), token="A", at=950)
    shown = of(opening, record(2, recorded("plan"), token="A", at=900), book)
    assert [step.took_ms for step in shown.steps] == [800, 50]


def test_write_units_are_those_that_were_counted() -> None:
    """An echo task costs 9 and 7, a chunk 4, as the page `cost-drivers` has counted them."""
    ids: Any = {"scope": "s", "task_id": "t", "context_id": "c", "incarnation": "i"}
    new = NewTask(request=request("hi", message_id="m"), **ids)
    shown = of(
        Record.of(open_task(new, now_ms=0, timing=Timing())),
        record(2, status(WORKING), CHUNK, status(COMPLETED), TurnEnded(), token="A"),
        record(3, CHUNK, token="A"),
        record(4, ArtifactWritten(Artifact(parts=[Part(text="x" * 340_000)])), token="A"),
    )
    assert [commit.units for commit in shown.commits] == [9, 7, 4, 2 * (333 + 1 + 1)]
    assert shown.units == sum(commit.units for commit in shown.commits)


def test_a_webhook_shows_no_secret() -> None:
    """Its receiver is scheme and host; how far it is, is the cursor and what is behind it."""
    url = "https://user:secret@example.com:8443/hook/token?key=secret"
    config = TaskPushNotificationConfig(id="c", task_id="t", url=url, token="secret")
    push = replace(PUSH, config=config, failures=2, failing_since=5_000)
    records = [record(number, status(WORKING)) for number in (1, 2, 3)]
    (ends,) = timeline_of(opened(), records, pushes=[push]).webhooks
    (shown,) = timeline_of(opened(), records, pushes=[push], push_events="statuses").webhooks
    assert (ends.owed, shown.owed, shown.receiver) == (0, 2, "https://example.com:8443")
    assert _webhook(shown, 10_000) == (
        "https://example.com:8443 (id c): told of nothing so far, owed 2,"
        " 2 attempts failed since 1970-01-01T00:00:05.000Z (5 s ago)"
    )


def test_a_webhook_has_its_last_answer_and_its_next_try() -> None:
    """As its item has them; a next try stands only while its receiver fails."""
    failing = replace(PUSH, failures=1, failing_since=5_000)
    failed = failing.answered("status 503", 6_000, next_at=9_000)
    (shown,) = timeline_of(opened(), [], pushes=[failed]).webhooks
    assert _webhook(shown, 10_000).endswith(
        ", last answer status 503 at 1970-01-01T00:00:06.000Z (4 s ago),"
        " next try at 1970-01-01T00:00:09.000Z (1 s ago)"
    )
    held = failed.answered("the receiver fails: ConnectError", 7_000, next_at=9_000)
    (shown,) = timeline_of(opened(), [], pushes=[held]).webhooks
    told = ", not called (the receiver fails: ConnectError) at 1970-01-01T00:00:07"
    assert told in _webhook(shown, 10_000)
    later = replace(failed, failures=0, failing_since=None)  # by a release that keeps no answer
    (shown,) = timeline_of(opened(), [], pushes=[later]).webhooks
    assert (shown.answer, shown.next_at) == ("status 503", None)


def test_the_logs_tell_of_each_delivery() -> None:
    """In their order, below their webhook; what is damaged, or of another line, is no delivery."""
    push = replace(PUSH, version=2)
    line: dict[str, Any] = {"config_id": "c", "version": 2, "reason": "status 503"}
    lines: list[tuple[int, dict[str, Any]]] = [
        (30, line | {"action": "push_delivered", "attempt": 2, "reason": "status 200"}),
        (10, line | {"action": "push_failed", "attempt": 1, "wait_s": "4.5"}),
        (40, line | {"action": "push_given_up", "attempt": 10**400, "version": "x", "wait_s": []}),
        (50, {"action": "push_receiver_given_up", "config_id": "gone", "wait_s": float("nan")}),
        (60, line | {"action": "claimed"}),
        (70, {"action": "push_failed", "config_id": 7}),
        (80, {"action": ["push_failed"]}),
    ]
    none: dict[str, Any] = dict.fromkeys(("level", "action", "message"), "")
    logged = [LogLine(at=at, fields=fields, **none) for at, fields in lines]
    shown = with_logs(timeline_of(opened(), [], pushes=[push]), logged)
    assert [[(one.at, delivery(one)) for one in hook.deliveries] for hook in shown.webhooks] == [
        [
            (10, "version 2, attempt 1: status 503, waits 4.5 s"),
            (30, "version 2, attempt 2: told, status 200"),
            (40, "given up, status 503"),
        ],
        [(50, "given up, no reason given")],
    ]
    gone = _webhook(shown.webhooks[1], 0)
    assert gone == "a deleted webhook (id gone): the logs alone tell of it"
