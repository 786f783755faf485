"""What a save changes of a task, and the task that is folded from it."""

from __future__ import annotations

import pytest
from a2a.types import Artifact, Part, Task, TaskArtifactUpdateEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_serverless.stores.content import apply, change_of, contents_of, size_of, task_of

contents = st.lists(st.text("ab", max_size=12).map(str.encode), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(contents, min_size=1, max_size=6), st.binary(max_size=8))
def test_changes_lead_to_what_was_saved(versions: list[list[bytes]], event: bytes) -> None:
    """Whatever the contents were before, the change makes them those that are saved."""
    stored: list[bytearray] = []
    before: list[bytes] = []
    for after in versions:
        change = change_of(before, after, event)
        assert change.body.startswith(event)
        apply(stored, change)
        assert [bytes(one) for one in stored] == after
        before = after


def test_what_an_event_brings_is_stored_once() -> None:
    """A chunk is in its event alone: the change has no bytes of its own."""
    task = Task(id="t", artifacts=[Artifact(artifact_id="a", parts=[Part(text="x" * 500)])])
    task.artifacts[0].metadata["k"] = "v"
    before = contents_of(task)
    part = Part(text="y" * 500)
    task.artifacts[0].parts.append(part)
    event = TaskArtifactUpdateEvent(artifact=Artifact(artifact_id="a", parts=[part]))
    sent = event.SerializeToString()
    change = change_of(before, contents_of(task), sent)
    assert change.body == sent
    assert len(change.cuts) == 1


@pytest.mark.parametrize("parts", [0, 1, 30])
def test_contents_are_the_task(parts: int) -> None:
    """A task is made of its contents, which are as long as the task."""
    task = Task(id="t", context_id="c")
    for name in "ab":
        task.artifacts.add(artifact_id=name, parts=[Part(text=str(n)) for n in range(parts)])
        task.history.add(message_id=name)
    made = contents_of(task)
    assert task_of(made) == task
    assert len(made) == 4
    assert size_of(made) <= task.ByteSize()
