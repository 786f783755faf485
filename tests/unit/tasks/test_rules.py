"""The rules of tasks and turns, one decision at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import (
    TaskNotAcceptingMessagesError,
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
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, advance, content_digest, open_task

TIMING = Timing(ttl_s=100, waiting_s=60, lease_s=900)
NOW = 1_000_000


def message(text: str = "hello", message_id: str = "m1") -> Message:
    return Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)])


def opened() -> Head:
    new = NewTask(
        scope="s",
        task_id="t",
        context_id="c",
        incarnation="i",
        request=SendMessageRequest(message=message()),
    )
    return open_task(new, now_ms=NOW, timing=TIMING).head


def status(state: TaskState, text: str = "") -> StatusChanged:
    answer = Message(message_id="a", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    return StatusChanged(TaskStatus(state=state, message=answer if text else None))


def follow_up(text: str = "more") -> TurnOpened:
    return TurnOpened(SendMessageRequest(message=message(text, "m2")))


def step(head: Head, *entries: Entry, now_ms: int = NOW + 10, **commit: object) -> Head:
    made = Commit(entries=entries, **commit)  # type: ignore[arg-type]
    return advance(head, made, now_ms=now_ms, timing=TIMING).head


def claimed(head: Head | None = None, token: str = "A") -> Head:
    return step(head or opened(), token=token, claims=True)


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
    assert head.due_at == NOW + 60_000
    assert head.expires_at == NOW + 100_000
    assert not head.has_expired(head.expires_at - 1)
    assert head.has_expired(head.expires_at)


def test_a_claim_owns_the_turn_counts_the_attempt_and_moves_the_due_time() -> None:
    """The first claim of a turn is no restart; it shows the task working."""
    made = advance(opened(), Commit(token="A", claims=True), now_ms=NOW, timing=TIMING)
    assert [type(entry) for entry in made.entries] == [StatusChanged]
    assert made.head.state == TaskState.TASK_STATE_WORKING
    assert (made.head.turn.token, made.head.turn.attempts) == ("A", 1)
    assert made.head.due_at == NOW + 900_000


def test_a_claim_with_a_status_of_its_own_adds_none() -> None:
    """A fast agent's whole turn is one commit with one status."""
    done = Commit(token="A", claims=True, entries=(status(TaskState.TASK_STATE_COMPLETED, "done"),))
    made = advance(opened(), done, now_ms=NOW, timing=TIMING)
    assert [type(entry) for entry in made.entries] == [StatusChanged, TurnEnded]


def test_a_second_claim_restarts_the_turn() -> None:
    """A second claim discards the first attempt's work, shows the task working, and counts two."""
    made = advance(claimed(), Commit(token="B", claims=True), now_ms=NOW, timing=TIMING)
    assert made.entries[0] == Restarted(1)
    assert isinstance(made.entries[1], StatusChanged)
    assert made.entries[1].status.state == TaskState.TASK_STATE_WORKING
    assert (made.head.turn.token, made.head.turn.attempts) == ("B", 2)


def folded(commits: Iterable[Commit]) -> Fold:
    """What clients see after a new task and these commits."""
    new = NewTask(
        scope="s",
        task_id="t",
        context_id="c",
        incarnation="i",
        request=SendMessageRequest(message=message("go")),
    )
    made, fold = open_task(new, now_ms=NOW, timing=TIMING), Fold("t", "c")
    fold.add(Record(version=1, entries=made.entries))
    for commit in commits:
        made = advance(made.head, commit, now_ms=NOW, timing=TIMING)
        entries, version = made.entries, made.head.version
        fold.add(Record(version=version, entries=entries, token=commit.token))
    return fold


def texts(fold: Fold) -> list[str]:
    """The history, and behind it the message of the status."""
    status_message = [fold.status.message] if fold.status.HasField("message") else []
    return [said.parts[0].text for said in (*fold.history, *status_message)]


ASKED = Commit(token="A", claims=True, entries=(status(TaskState.TASK_STATE_AUTH_REQUIRED, "1?"),))
ANSWERED = Commit(entries=(follow_up("one"),))
ASKED_AGAIN = Commit(
    token="A",
    entries=(status(TaskState.TASK_STATE_AUTH_REQUIRED, "2?"),),
    ends_turn=True,
)


def test_a_claim_keeps_what_the_agent_has_asked() -> None:
    """A message was waiting when the agent asked again: both questions are in the history, once."""
    waiting = (ASKED, ANSWERED, ASKED_AGAIN)
    assert texts(folded(waiting)) == ["go", "1?", "one", "2?"]
    working = folded((*waiting, Commit(token="B", claims=True)))
    assert texts(working) == ["go", "1?", "one", "2?"]
    assert not working.status.HasField("message")


def test_a_second_claim_keeps_what_the_agent_has_asked() -> None:
    """A restart brings the question back into the status, and the claim archives it again."""
    claims = [Commit(token=token, claims=True) for token in "BCD"]
    assert texts(folded((ASKED, ANSWERED, ASKED_AGAIN, *claims))) == ["go", "1?", "one", "2?"]


def test_a_question_that_its_answer_has_archived_is_there_once() -> None:
    """A message to a paused task archives the question; the claim finds none in the status."""
    asked = status(TaskState.TASK_STATE_INPUT_REQUIRED, "1?")
    paused_task = Commit(token="A", claims=True, entries=(asked,))
    claims = [Commit(token=token, claims=True) for token in "BC"]
    assert texts(folded((paused_task, ANSWERED, *claims))) == ["go", "1?", "one"]


def test_a_claim_of_the_owner_changes_nothing() -> None:
    """Two writers of one attempt may both claim: the second is an ordinary commit of the owner."""
    owned = claimed()
    again = step(owned, token="A", claims=True, now_ms=NOW + 50)
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
    assert ended.due_at == NOW + 10 + 60_000


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


def test_the_agents_own_timestamp_is_replaced() -> None:
    """A status gets the time of its commit, not that of the agent's own timestamp."""
    early = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    early.timestamp.FromMilliseconds(5)
    head = step(claimed(), StatusChanged(early), token="A", now_ms=NOW + 500)
    assert head.status is not None
    assert TaskStatus.FromString(head.status).timestamp.ToMilliseconds() == NOW + 500


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
