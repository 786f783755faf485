"""Large data: what fits is stored whole, what does not is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import Artifact, Part, TaskState
from google.protobuf.json_format import ParseDict

from a2a_serverless.errors import CommitTooLargeError, InvalidArgumentError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES, DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.databases import versions
from tests.support.messages import agent_message, chunk, message, request, said, texts
from tests.support.present import present

KB = 1024
MB = 1024 * KB


def noise(size: int) -> bytes:
    """Bytes without a pattern that a part in the wrong place would keep."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4))


@pytest.mark.long(but=1)
async def test_an_artifact_of_3_mb(storage: DurableStorage) -> None:
    """An artifact of 3 MB written by one call is loaded as it was."""
    raw = noise(3 * MB)
    task = await Storage(storage).create_task("ctx", message())
    whole = Artifact(artifact_id="a", parts=[Part(raw=raw)])
    await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(whole)])
    await Storage(storage).update_task(task.id, artifacts=[chunk("a", "end")])
    loaded = present(await storage.load_task(task.id))
    assert loaded.artifacts[0].parts[0].raw == raw
    assert loaded.artifacts[0].parts[1].text == "end"


async def test_an_artifact_of_many_chunks(storage: DurableStorage) -> None:
    """A task beyond one page of a query is read whole, and from any version on."""
    task = await Storage(storage).create_task("ctx", message())
    for number in range(8):
        await Storage(storage).update_task(task.id, artifacts=[chunk("a", str(number) * 300 * KB)])
    loaded = present(await storage.load_task(task.id))
    assert texts(loaded, "a") == [str(number) * 300 * KB for number in range(8)]
    head = present(await storage.head(task.id))
    log = present(await storage.read(task.id, after=4, incarnation=head.incarnation))
    assert [record.version for record in log.records] == [5, 6, 7, 8, 9]


async def test_a_history_of_1000_messages(storage: DurableStorage) -> None:
    """A thousand messages keep their order, and the last n are found."""
    expected = ["hello", *map(str, range(999))]
    task = await Storage(storage).create_task("ctx", message())
    for start in range(0, 999, 100):
        said_now = [agent_message(text) for text in expected[1:][start : start + 100]]
        await Storage(storage).update_task(task.id, messages=said_now)
    loaded = present(await storage.load_task(task.id))
    assert said(loaded) == expected
    latest = present(await storage.load_task(task.id, 3))
    assert said(latest) == expected[-3:]


async def test_a_first_message_of_1_mb(storage: DurableStorage) -> None:
    """The message that opens a task may be large as well, and its key still finds it."""
    text = "x" * MB
    task = await Storage(storage).create_task("ctx", message(text), idempotency_key="key")
    assert said(task) == [text]
    assert await Storage(storage).create_task("ctx", message(), idempotency_key="key") == task


@pytest.mark.parametrize("size", [100, 3 * KB, 5 * KB, 400 * KB])
async def test_a_status_message_of_any_size(storage: DurableStorage, size: int) -> None:
    """A whole answer in a status is found in the short form, the whole task and listings."""
    task = await Storage(storage).create_task("ctx", message())
    answer = agent_message("x" * size)
    await Storage(storage).update_task(
        task.id,
        TaskState.TASK_STATE_COMPLETED,
        status_message=answer,
        task_metadata={"k": "y" * size},
    )
    short = await storage.load_task(task.id, 0, include_artifacts=False)
    whole = await storage.load_task(task.id)
    listed = await list_tasks(storage, ListTasksQuery(history_length=0))
    for found in (short, whole, *listed.tasks):
        assert found is not None
        assert found.status.message == answer
        assert found.metadata["k"] == "y" * size


async def test_a_commit_beyond_the_limit_is_refused(storage: DurableStorage) -> None:
    """A call with more than 4 MB raises an error that names the limit, and writes nothing."""
    task = await Storage(storage).create_task("ctx", message())
    large = [ArtifactWrite(Artifact(artifact_id="a", parts=[Part(raw=bytes(MAX_COMMIT_BYTES))]))]
    with pytest.raises(CommitTooLargeError) as caught:
        await Storage(storage).update_task(task.id, TaskState.TASK_STATE_COMPLETED, artifacts=large)
    assert caught.value.limit == MAX_COMMIT_BYTES
    assert caught.value.size > MAX_COMMIT_BYTES
    assert str(MAX_COMMIT_BYTES) in str(caught.value)
    assert await versions(storage, task.id) == [1]
    assert "'a' has 4000" in str(caught.value)
    with pytest.raises(CommitTooLargeError, match="URL"):
        await Storage(storage).create_task("ctx", message("x" * MAX_COMMIT_BYTES))
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 1


@pytest.mark.long(but=1)
async def test_the_largest_commit_is_stored(storage: DurableStorage) -> None:
    """A commit that just fits, with the largest state of a context, is one transaction."""
    head = (await storage.open_task("x" * 512, request())).head
    state = "y" * 339_000
    room = MAX_COMMIT_BYTES - len(state) - 2000
    large = ArtifactWritten(Artifact(artifact_id="a", parts=[Part(raw=noise(room))]))
    await storage.commit(head, Commit(entries=(large,), context_write=context_write(state)))
    task = present(await storage.load_task(head.task_id))
    assert task.artifacts[0].parts[0].raw == noise(room)
    assert await Storage(storage).load_context("x" * 512) == state


def nested(levels: int) -> Artifact:
    """An artifact whose data is `levels` lists deep."""
    data: Any = 1
    for _ in range(levels):
        data = [data]
    part = Part()
    ParseDict(data, part.data)
    return Artifact(artifact_id="deep", parts=[part])


async def test_what_cannot_be_read_back_is_refused(storage: DurableStorage) -> None:
    """Data nested beyond protobuf's decoder is a typed error, and the task stays readable."""
    task = await Storage(storage).create_task("ctx", message())
    await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(nested(30))])
    with pytest.raises(InvalidArgumentError, match="nested"):
        await Storage(storage).update_task(task.id, artifacts=[ArtifactWrite(nested(49))])
    assert await Storage(storage).get_version(task.id) == 2
    assert (await list_tasks(storage, ListTasksQuery(include_artifacts=True))).tasks[0].artifacts
