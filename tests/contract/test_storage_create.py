"""Creating and loading tasks."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.databases import versions
from tests.support.messages import agent_message, artifact, message, request, said
from tests.support.present import present


async def test_a_new_task_is_submitted(storage: DurableStorage) -> None:
    """It has an id, its context, version 1, and its message as history; it is stored so (1-4, 17).

    The message that was given is not mutated.
    """
    sent = message("hi")
    before = sent.SerializeToString()
    task = await Storage(storage).create_task("ctx", sent)
    assert sent.SerializeToString() == before
    sent.task_id, sent.context_id = task.id, "ctx"
    assert (bool(task.id), task.context_id) == (True, "ctx")
    assert task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert (list(task.history), list(task.artifacts)) == ([sent], [])
    assert await Storage(storage).load_task(task.id) == task
    assert await Storage(storage).get_version(task.id) == 1
    assert await versions(storage, task.id) == [1]


async def test_a_repeated_key_returns_the_task_as_it_is_now(storage: DurableStorage) -> None:
    """A repetition after the task has moved on returns today's task (5)."""
    first = await Storage(storage).create_task("ctx", message(), idempotency_key="key")
    await Storage(storage).update_task(first.id, TaskState.TASK_STATE_WORKING)
    again = await Storage(storage).create_task("ctx", message(), idempotency_key="key")
    assert again.status.state == TaskState.TASK_STATE_WORKING


async def test_a_key_belongs_to_its_context(storage: DurableStorage) -> None:
    """In another context it is another task, also where both read alike; so is no key (6, 7)."""
    ids = set()
    for context, key in (("a", "b:c"), ("a:b", "c"), ("a", "c"), ("a", None), ("a", None)):
        sent = message(message_id="m")
        ids.add((await Storage(storage).create_task(context, sent, idempotency_key=key)).id)
    assert len(ids) == 5


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
    task = present(await Storage(storage).load_task(opened.head.task_id))
    assert said(task) == ["new"]
    assert not task.artifacts


async def test_a_missing_task_is_none(storage: DurableStorage) -> None:
    """A load of an unknown id returns None, and so does its version (12, 38)."""
    assert await Storage(storage).load_task("missing") is None
    assert await Storage(storage).get_version("missing") is None
    assert await Storage(storage).load_task("missing", 0, include_artifacts=False) is None


async def test_history_length(storage: DurableStorage) -> None:
    """None is all messages, 0 none, n the last n, oldest first; others are errors (13, 28)."""
    task = await Storage(storage).create_task("ctx", message("1"))
    await Storage(storage).update_task(task.id, messages=[agent_message("2"), agent_message("3")])
    await Storage(storage).update_task(task.id, messages=[agent_message("4")])
    for length, expected in (
        (None, "1234"),
        (0, ""),
        (1, "4"),
        (2, "34"),
        (4, "1234"),
        (9, "1234"),
    ):
        loaded = present(await Storage(storage).load_task(task.id, length))
        assert said(loaded) == [*expected]
    for bad in (-1, -100, 1.0, "1", True):
        with pytest.raises(InvalidArgumentError):
            await Storage(storage).load_task(task.id, bad)  # type: ignore[arg-type]


async def test_artifacts_can_be_left_out(storage: DurableStorage) -> None:
    """`include_artifacts=False` leaves artifacts out; the default has them (15)."""
    task = await Storage(storage).create_task("ctx", message())
    await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(artifact("a", "x"))])
    with_them = present(await Storage(storage).load_task(task.id))
    without = present(await Storage(storage).load_task(task.id, include_artifacts=False))
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
    short = present(await Storage(storage).load_task(task.id, 0, include_artifacts=False))
    whole = present(await Storage(storage).load_task(task.id))
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
    loaded = present(await Storage(storage).load_task(task.id))
    loaded.artifacts[0].parts[0].text = "changed"
    loaded.status.state = TaskState.TASK_STATE_FAILED
    again = present(await Storage(storage).load_task(task.id))
    assert said(again) == ["hi"]
    assert again.artifacts[0].parts[0].text == "x"
    assert again.status.state == TaskState.TASK_STATE_SUBMITTED
