"""The rules of tasks and turns, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import (
    TaskNotAcceptingMessagesError,
    TaskTerminalStateError,
    TurnFinishedError,
)
from a2a_serverless.tasks.entries import (
    Entry,
    MetadataMerged,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import MAX_INLINE_BYTES, Head, Turn
from a2a_serverless.tasks.rules import Commit, Timing, advance, content_digest, open_task
from tests.unit.tasks.heads import NEW, asked, claimed, opened

NOW = 1_000


def message(text: str = "hello", message_id: str = "m1") -> Message:
    return Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)])


def status(state: TaskState, text: str = "") -> StatusChanged:
    answer = Message(message_id="a", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    return StatusChanged(TaskStatus(state=state, message=answer if text else None))


def follow_up(text: str = "more") -> TurnOpened:
    return TurnOpened(SendMessageRequest(message=message(text, "m2")))


def step(head: Head, *entries: Entry, **commit: object) -> Head:
    made = Commit(entries=entries, **commit)  # type: ignore[arg-type]
    return advance(head, made, now_ms=NOW, timing=Timing()).head


def paused() -> Head:
    return step(claimed(), status(TaskState.TASK_STATE_INPUT_REQUIRED, "which?"), token="A")


def waiting_for_credentials() -> Head:
    return step(claimed(), status(TaskState.TASK_STATE_AUTH_REQUIRED, "sign in"), token="A")


def test_a_new_task_is_submitted_due_and_expires() -> None:
    """Version 1 opens turn 1, unclaimed, due after the waiting time, expiring after its life."""
    head = opened()
    assert (head.version, head.turn) == (1, Turn(number=1, base=1))
    assert head.state == TaskState.TASK_STATE_SUBMITTED
    assert head.turn.token is None
    assert (head.due_at, head.expires_at) == (60_000, 30 * 24 * 3_600_000)
    assert not head.has_expired(head.expires_at - 1)
    assert head.has_expired(head.expires_at)


def test_a_claim_owns_the_turn_counts_the_attempt_and_moves_the_due_time() -> None:
    """The first claim of a turn is no restart; it shows the task working."""
    made = advance(opened(), Commit(token="A", claims=True), now_ms=NOW, timing=Timing())
    assert [type(entry) for entry in made.entries] == [StatusChanged]
    assert made.head.state == TaskState.TASK_STATE_WORKING
    assert (made.head.turn.token, made.head.turn.attempts) == ("A", 1)
    assert made.head.due_at == NOW + 300_000


def test_a_claim_with_a_status_of_its_own_adds_none() -> None:
    """A fast agent's whole turn is one commit with one status."""
    done = Commit(token="A", claims=True, entries=(status(TaskState.TASK_STATE_COMPLETED, "done"),))
    made = advance(opened(), done, now_ms=NOW, timing=Timing())
    assert [type(entry) for entry in made.entries] == [StatusChanged, TurnEnded]


def test_a_second_claim_restarts_the_turn() -> None:
    """A second claim discards the first attempt's work, shows the task working, and counts two."""
    made = advance(claimed(), Commit(token="B", claims=True), now_ms=NOW, timing=Timing())
    assert made.entries[0] == Restarted(1)
    assert isinstance(made.entries[1], StatusChanged)
    assert made.entries[1].status.state == TaskState.TASK_STATE_WORKING
    assert (made.head.turn.token, made.head.turn.attempts) == ("B", 2)


def texts(*commits: Commit) -> list[str]:
    """What clients read after a new task and these commits; behind the history the status."""
    made, fold = open_task(NEW, now_ms=NOW, timing=Timing()), Fold("t", "c")
    fold.add(Record(version=1, entries=made.entries))
    for commit in commits:
        made = advance(made.head, commit, now_ms=NOW, timing=Timing())
        record = Record(version=made.head.version, entries=made.entries, token=commit.token)
        fold.add(record)
    shown = [fold.status.message] if fold.status.HasField("message") else []
    assert not (shown and fold.status.state == TaskState.TASK_STATE_WORKING)
    return [said.parts[0].text for said in (*fold.history, *shown)]


ASKED = Commit(token="A", claims=True, entries=(status(TaskState.TASK_STATE_AUTH_REQUIRED, "1?"),))
ANSWERED = Commit(entries=(follow_up("one"),))
ASKED_AGAIN = Commit(
    token="A", entries=(status(TaskState.TASK_STATE_AUTH_REQUIRED, "2?"),), ends_turn=True
)


PAUSED = Commit(
    token="A", claims=True, entries=(status(TaskState.TASK_STATE_INPUT_REQUIRED, "1?"),)
)


@pytest.mark.parametrize("claims", ["", "B", "BCD"])
def test_a_claim_keeps_what_the_agent_has_asked(claims: str) -> None:
    """A message was waiting when the agent asked again: both questions are in the history, once.

    A restart brings the question back into the status, and the claim archives it again.
    """
    claimed_by = [Commit(token=token, claims=True) for token in claims]
    both = texts(ASKED, ANSWERED, ASKED_AGAIN, *claimed_by)
    assert both == ["hello", "1?", "one", "2?"]
    # The message to a paused task archives the question: a claim finds none in the status.
    assert texts(PAUSED, ANSWERED, *claimed_by) == ["hello", "1?", "one"]


def test_a_claim_of_the_owner_changes_nothing() -> None:
    """Two writers of one attempt may both claim: the second is an ordinary commit of the owner."""
    owned = claimed()
    again = step(owned, token="A", claims=True)
    assert again == replace(owned, version=owned.version + 1)


def test_auth_required_leaves_the_turn_to_its_attempt() -> None:
    """The agent may wait for out-of-band credentials; returning ends the turn."""
    head = waiting_for_credentials()
    assert head.turn.is_open
    assert head.turn.token == "A"
    assert not step(head, token="A", ends_turn=True).turn.is_open


def test_a_message_for_an_attempt_that_waits_for_credentials_is_queued() -> None:
    """The attempt keeps the turn; the message's turn follows, based on what the attempt left."""
    head = step(waiting_for_credentials(), follow_up())
    assert (head.turn.number, head.next_turn, head.turn.token) == (1, head.version, "A")
    ended = step(head, token="A", ends_turn=True)
    assert (ended.turn.number, ended.turn.base) == (head.version, ended.version)
    assert (ended.next_turn, ended.turn.is_open, ended.turn.token) == (0, True, None)
    assert ended.due_at == NOW + 60_000


def test_one_message_at_most_waits_behind_a_running_attempt() -> None:
    """A second one is refused until the first one's turn has come."""
    head = step(waiting_for_credentials(), follow_up())
    with pytest.raises(TaskNotAcceptingMessagesError):
        step(head, follow_up("again"))


def test_a_task_that_ends_drops_the_turn_that_waited() -> None:
    """A terminal state also drops a queued turn, and the task is not due any more."""
    head = step(waiting_for_credentials(), follow_up())
    ended = step(head, status(TaskState.TASK_STATE_CANCELED))
    assert (ended.turn.is_open, ended.next_turn, ended.due_at) == (False, 0, None)


def test_what_is_over_stays_as_it_is() -> None:
    """An ended task takes no status, and a turn that is over is not claimed."""
    ended = step(claimed(), status(TaskState.TASK_STATE_COMPLETED), token="A")
    with pytest.raises(TaskTerminalStateError):
        step(ended, status(TaskState.TASK_STATE_WORKING))
    for head in (ended, paused()):
        with pytest.raises(TurnFinishedError):
            step(head, token="B", claims=True)


def test_no_commit_moves_a_cancels_deadline() -> None:
    """Neither a status nor another claim; only the end of the task takes it away."""
    head = asked(claimed())
    for later in (step(head, status(TaskState.TASK_STATE_WORKING), token="A"), claimed(head, "B")):
        assert later.due_at == head.due_at


def test_the_agents_own_timestamp_is_replaced() -> None:
    """A status gets the time of its commit, not that of the agent's own timestamp."""
    early = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    early.timestamp.FromMilliseconds(5)
    head = step(claimed(), StatusChanged(early), token="A")
    assert head.status is not None
    assert TaskStatus.FromString(head.status).timestamp.ToMilliseconds() == NOW


def test_what_is_large_stays_in_the_log() -> None:
    """HEAD is rewritten by every commit, so it points to a large status instead of holding it."""
    long = "x" * (MAX_INLINE_BYTES + 1)
    head = step(claimed(), status(TaskState.TASK_STATE_WORKING, long), token="A")
    assert head.status is None
    assert step(head, status(TaskState.TASK_STATE_WORKING), token="A").status is not None


def test_a_restart_forgets_the_metadata_of_the_dead_attempt() -> None:
    """HEAD cannot know what was there before, so it points to the log."""
    metadata = Struct()
    metadata.update({"draft": 1})
    head = step(claimed(), MetadataMerged(metadata), token="A")
    assert claimed(head, "B").metadata is None


def test_a_restart_takes_back_a_reply() -> None:
    """A second claim discards the reply that the first attempt made."""
    head = step(claimed(), Replied(message()), token="A")
    assert head.replied
    assert not claimed(head, "B").replied


def test_the_latest_message_is_remembered_for_recognition() -> None:
    """HEAD keeps a digest of the latest message's content, with the server's ids left out."""
    head = step(paused(), follow_up())
    bound = message("more", "m2")
    bound.task_id, bound.context_id = "t", "c"
    assert head.content_digest == content_digest(bound)
