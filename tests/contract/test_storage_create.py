"""Creating and loading tasks."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import Message, TaskState

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.databases import versions
from tests.support.messages import agent_message, artifact, message, request, said


async def test_a_new_task_is_submitted(storage: DurableStorage) -> None:
    """A created task has an id, its context, the state submitted, and no artifacts (1, 3)."""
    task = await Storage(storage).create_task("ctx", message())
    assert task.id
    assert task.context_id == "ctx"
    assert task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert not task.artifacts


async def test_the_first_message_is_bound_to_the_task(storage: DurableStorage) -> None:
    """The history is the first message with task and context; the input is not mutated (2)."""
    sent = message("hi")
    before = sent.SerializeToString()
    task = await Storage(storage).create_task("ctx", sent)
    assert sent.SerializeToString() == before
    expected = Message()
    expected.CopyFrom(sent)
    expected.task_id, expected.context_id = task.id, "ctx"
    assert list(task.history) == [expected]


async def test_a_created_task_is_what_is_stored(storage: DurableStorage) -> None:
    """What create returns is what a load returns right after it (17)."""
    task = await Storage(storage).create_task("ctx", message())
    assert await Storage(storage).load_task(task.id) == task


async def test_the_first_version_is_1(storage: DurableStorage) -> None:
    """A task begins at version 1 (4)."""
    task = await Storage(storage).create_task("ctx", message())
    assert await Storage(storage).get_version(task.id) == 1
    assert await versions(storage, task.id) == [1]


async def test_a_repeated_key_returns_the_first_task(storage: DurableStorage) -> None:
    """The same key in the same context is the same task; the second content is ignored (5)."""
    first = await Storage(storage).create_task("ctx", message("one"), idempotency_key="key")
    again = await Storage(storage).create_task("ctx", message("two"), idempotency_key="key")
    assert again == first
    assert said(again) == ["one"]


async def test_a_repeated_key_returns_the_task_as_it_is_now(storage: DurableStorage) -> None:
    """A repetition after the task has moved on returns today's task (5)."""
    first = await Storage(storage).create_task("ctx", message(), idempotency_key="key")
    await Storage(storage).update_task(first.id, TaskState.TASK_STATE_WORKING)
    again = await Storage(storage).create_task("ctx", message(), idempotency_key="key")
    assert again.status.state == TaskState.TASK_STATE_WORKING


async def test_a_key_belongs_to_its_context(storage: DurableStorage) -> None:
    """The same key in another context is another task (6)."""
    first = await Storage(storage).create_task("ctx-1", message(), idempotency_key="key")
    other = await Storage(storage).create_task("ctx-2", message(), idempotency_key="key")
    assert first.id != other.id


async def test_context_and_key_do_not_run_together(storage: DurableStorage) -> None:
    """Pairs that read alike when joined are different keys (6)."""
    first = await Storage(storage).create_task("a:b", message(), idempotency_key="c")
    other = await Storage(storage).create_task("a", message(), idempotency_key="b:c")
    assert first.id != other.id


async def test_without_a_key_every_task_is_new(storage: DurableStorage) -> None:
    """Identical messages without a key make different tasks (7)."""
    first = await Storage(storage).create_task("ctx", message(message_id="m"))
    second = await Storage(storage).create_task("ctx", message(message_id="m"))
    assert first.id != second.id


async def test_only_the_first_creation_says_created(storage: DurableStorage) -> None:
    """`created` is true for a new task alone, and so is the log that comes with it (8)."""
    first = await storage.open_task("ctx", request(), idempotency_key="key")
    again = await storage.open_task("ctx", request(), idempotency_key="key")
    assert (first.created, again.created) == (True, False)
    assert first.head == again.head
    assert again.log is None
    assert await storage.read(first.head.task_id) == first.log


async def test_concurrent_creations_have_one_winner(storage: DurableStorage) -> None:
    """Of creations with one key at the same time exactly one creates (9)."""
    opened = await asyncio.gather(
        *(storage.open_task("ctx", request(str(n)), idempotency_key="key") for n in range(8))
    )
    assert sum(one.created for one in opened) == 1
    assert len({one.head.incarnation for one in opened}) == 1


async def test_a_deleted_task_frees_its_key(storage: DurableStorage) -> None:
    """After a delete the key makes a new task, with nothing of the old one (11)."""
    old = await Storage(storage).create_task("ctx", message("old"), idempotency_key="key")
    await Storage(storage).update_task(old.id, artifacts=[ArtifactWrite(artifact("a", "old"))])
    await Storage(storage).delete_task(old.id)
    opened = await storage.open_task("ctx", request("new"), idempotency_key="key")
    assert opened.created
    task = await Storage(storage).load_task(opened.head.task_id)
    assert task is not None
    assert said(task) == ["new"]
    assert not task.artifacts


async def test_a_missing_task_is_none(storage: DurableStorage) -> None:
    """A load of an unknown id returns None (12)."""
    assert await Storage(storage).load_task("missing") is None
    assert await Storage(storage).load_task("missing", 0, include_artifacts=False) is None


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (None, ["1", "2", "3"]),
        (0, []),
        (1, ["3"]),
        (2, ["2", "3"]),
        (3, ["1", "2", "3"]),
        (9, ["1", "2", "3"]),
    ],
)
async def test_history_length(
    storage: DurableStorage, length: int | None, expected: list[str]
) -> None:
    """A history length of None returns all messages, 0 none, n the last n, oldest first (13)."""
    task = await Storage(storage).create_task("ctx", message("1"))
    await Storage(storage).update_task(task.id, messages=[agent_message("2"), agent_message("3")])
    loaded = await Storage(storage).load_task(task.id, length)
    assert loaded is not None
    assert said(loaded) == expected


@pytest.mark.parametrize("length", [-1, -100, 1.0, "1", True])
async def test_a_bad_history_length_is_refused(storage: DurableStorage, length: object) -> None:
    """A negative or non-integer history length is an error."""
    task = await Storage(storage).create_task("ctx", message())
    with pytest.raises(InvalidArgumentError):
        await Storage(storage).load_task(task.id, length)  # type: ignore[arg-type]


async def test_artifacts_can_be_left_out(storage: DurableStorage) -> None:
    """`include_artifacts=False` leaves artifacts out; the default has them (15)."""
    task = await Storage(storage).create_task("ctx", message())
    await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(artifact("a", "x"))])
    with_them = await Storage(storage).load_task(task.id)
    without = await Storage(storage).load_task(task.id, include_artifacts=False)
    assert with_them is not None
    assert without is not None
    assert [a.artifact_id for a in with_them.artifacts] == ["a"]
    assert not without.artifacts
    assert without.history == with_them.history


async def test_the_short_form_agrees_with_the_long_one(storage: DurableStorage) -> None:
    """Without history and artifacts a task has the status and metadata of the whole (13, 15)."""
    task = await Storage(storage).create_task("ctx", message())
    await Storage(storage).update_task(
        task.id,
        TaskState.TASK_STATE_WORKING,
        status_message=agent_message("at work"),
        artifacts=[ArtifactWrite(artifact("a", "x"))],
        task_metadata={"k": {"deep": [1, None]}},
    )
    short = await Storage(storage).load_task(task.id, 0, include_artifacts=False)
    whole = await Storage(storage).load_task(task.id)
    assert short is not None
    assert whole is not None
    del whole.history[:], whole.artifacts[:]
    assert short == whole


async def test_a_loaded_task_is_the_callers_own(storage: DurableStorage) -> None:
    """Changing what was returned changes nothing that is stored (16)."""
    sent = message("hi")
    task = await Storage(storage).create_task("ctx", sent)
    sent.parts[0].text = "changed"
    task.history[0].parts[0].text = "changed"
    written = artifact("a", "x")
    await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(written)])
    written.parts[0].text = "changed"
    loaded = await Storage(storage).load_task(task.id)
    assert loaded is not None
    loaded.artifacts[0].parts[0].text = "changed"
    loaded.status.state = TaskState.TASK_STATE_FAILED
    again = await Storage(storage).load_task(task.id)
    assert again is not None
    assert said(again) == ["hi"]
    assert again.artifacts[0].parts[0].text == "x"
    assert again.status.state == TaskState.TASK_STATE_SUBMITTED
