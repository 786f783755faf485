"""Updating tasks."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from a2a.types import Artifact, Part, Task, TaskState
from google.protobuf.json_format import MessageToDict

from a2a_serverless.errors import (
    ConcurrencyError,
    InvalidArgumentError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import KNOWN, TERMINAL
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.databases import versions
from tests.support.messages import agent_message, artifact, chunk, message, said, texts
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED


async def new_task(storage: DurableStorage) -> str:
    return (await Storage(storage).create_task("ctx", message())).id


async def load(storage: DurableStorage, task_id: str) -> Task:
    return present(await Storage(storage).load_task(task_id))


async def test_every_update_adds_1(storage: DurableStorage) -> None:
    """A successful call returns the new version, one more, even without arguments (18)."""
    task_id = await new_task(storage)
    assert await Storage(storage).update_task(task_id, WORKING) == 2
    assert await Storage(storage).update_task(task_id) == 3
    assert await Storage(storage).update_task(task_id, messages=[agent_message("x")]) == 4
    assert await Storage(storage).get_version(task_id) == 4
    assert await versions(storage, task_id) == [1, 2, 3, 4]


async def test_the_expected_version_is_checked(storage: DurableStorage) -> None:
    """An equal version passes; another raises ConcurrencyError with the stored one (19, 20, 21)."""
    task_id = await new_task(storage)
    assert await Storage(storage).update_task(task_id, WORKING, expected_version=1) == 2
    for wrong in (1, 3, 0):
        with pytest.raises(ConcurrencyError) as caught:
            await Storage(storage).update_task(task_id, COMPLETED, expected_version=wrong)
        assert caught.value.current_version == 2
    assert (await load(storage, task_id)).status.state == WORKING
    for expected in (None, 1):
        with pytest.raises(TaskNotFoundError):
            await Storage(storage).update_task("missing", WORKING, expected_version=expected)


async def test_the_version_is_checked_before_the_state(storage: DurableStorage) -> None:
    """On a terminal task a wrong version is a ConcurrencyError (21)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(task_id, COMPLETED)
    with pytest.raises(ConcurrencyError):
        await Storage(storage).update_task(task_id, WORKING, expected_version=1)
    with pytest.raises(TaskTerminalStateError):
        await Storage(storage).update_task(task_id, WORKING, expected_version=2)


async def test_a_terminal_state_is_final(storage: DurableStorage) -> None:
    """No transition leaves a terminal state, not even to itself; nothing is written (22)."""
    for terminal in sorted(TERMINAL):
        task_id = await new_task(storage)
        await Storage(storage).update_task(task_id, terminal)
        before = await load(storage, task_id)
        for state in (terminal, WORKING, COMPLETED):
            with pytest.raises(TaskTerminalStateError):
                await Storage(storage).update_task(task_id, state, artifacts=[chunk("a", "late")])
        assert await load(storage, task_id) == before
        assert await Storage(storage).get_version(task_id) == 2


async def test_a_terminal_task_takes_content(storage: DurableStorage) -> None:
    """Without a state, messages and artifacts are appended to a terminal task (23)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(task_id, COMPLETED)
    written = {"messages": [agent_message("late")], "artifacts": [chunk("a", "late")]}
    assert await Storage(storage).update_task(task_id, **written) == 3  # type: ignore[arg-type]
    task = await load(storage, task_id)
    assert task.status.state == COMPLETED
    assert said(task) == ["hello", "late"]
    assert texts(task, "a") == ["late"]


async def test_no_state_keeps_the_state(storage: DurableStorage) -> None:
    """`state=None` keeps the whole status, timestamp included (24)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(task_id, WORKING, status_message=agent_message("busy"))
    before = (await load(storage, task_id)).status
    await Storage(storage).update_task(task_id, artifacts=[chunk("a", "x")])
    assert (await load(storage, task_id)).status == before


async def test_storage_has_no_state_machine(storage: DurableStorage) -> None:
    """Any non-terminal state may become any other, itself included (25)."""
    task_id = await new_task(storage)
    open_states = sorted(KNOWN - TERMINAL)
    for count, pair in enumerate(itertools.product(open_states, open_states)):
        for place, state in enumerate(pair):
            version = await Storage(storage).update_task(task_id, state)
            assert version == 2 + 2 * count + place
            assert (await load(storage, task_id)).status.state == state


async def test_the_status_message_is_the_latest_states(storage: DurableStorage) -> None:
    """It comes with its state, a state without one clears it; without a state it is lost (26)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(task_id, WORKING, status_message=agent_message("busy"))
    assert (await load(storage, task_id)).status.message.parts[0].text == "busy"
    await Storage(storage).update_task(task_id, WORKING)
    await Storage(storage).update_task(task_id, status_message=agent_message("lost"))
    assert not (await load(storage, task_id)).status.HasField("message")


async def test_status_timestamps_rise(storage: DurableStorage) -> None:
    """Status timestamps of a task rise strictly, though the clock stands still."""
    task_id = await new_task(storage)
    stamps = [(await load(storage, task_id)).status.timestamp.ToNanoseconds()]
    for _ in range(3):
        await Storage(storage).update_task(task_id, WORKING)
        stamps.append((await load(storage, task_id)).status.timestamp.ToNanoseconds())
    assert stamps == sorted(set(stamps))


async def test_an_artifact_is_replaced_in_its_place(storage: DurableStorage) -> None:
    """A write without append replaces the artifact as a whole, where it stands, or adds it (29)."""
    task_id = await new_task(storage)
    first = Artifact(artifact_id="a", name="old", parts=[Part(text="x"), Part(text="y")])
    await Storage(storage).update_task(
        task_id, artifacts=[ArtifactWrite(first), ArtifactWrite(artifact("b", "b"))]
    )
    await Storage(storage).update_task(task_id, artifacts=[ArtifactWrite(artifact("a", "z"))])
    task = await load(storage, task_id)
    assert [a.artifact_id for a in task.artifacts] == ["a", "b"]
    assert texts(task, "a") == ["z"]
    assert not task.artifacts[0].name


async def test_append_extends_parts_and_merges_metadata(storage: DurableStorage) -> None:
    """A chunk extends the parts and merges its metadata; the name stays (30, decided)."""
    task_id = await new_task(storage)
    whole = Artifact(artifact_id="a", name="kept", parts=[Part(text="x")])
    whole.metadata.update({"one": 1, "two": 2})
    more = Artifact(artifact_id="a", name="ignored", parts=[Part(text="y")])
    more.metadata.update({"two": 3})
    await Storage(storage).update_task(task_id, artifacts=[ArtifactWrite(whole)])
    await Storage(storage).update_task(task_id, artifacts=[ArtifactWrite(more, append=True)])
    stored = (await load(storage, task_id)).artifacts[0]
    assert [part.text for part in stored.parts] == ["x", "y"]
    assert stored.name == "kept"
    assert MessageToDict(stored.metadata) == {"one": 1, "two": 3}


async def test_one_call_mixes_append_and_replace(storage: DurableStorage) -> None:
    """The writes of one call apply in their order, each in its own way (32)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(task_id, artifacts=[chunk("a", "1"), chunk("b", "1")])
    await Storage(storage).update_task(
        task_id,
        artifacts=[
            chunk("a", "2"),
            ArtifactWrite(artifact("b", "new")),
            chunk("b", "2"),
            chunk("c", "1"),
        ],
    )
    task = await load(storage, task_id)
    assert texts(task, "a") == ["1", "2"]
    assert texts(task, "b") == ["new", "2"]
    assert texts(task, "c") == ["1"]


async def test_metadata_is_merged_shallowly(storage: DurableStorage) -> None:
    """Keys merge, the last writer wins, nested values are replaced, null is a value (33)."""
    task_id = await new_task(storage)
    await Storage(storage).update_task(
        task_id, task_metadata={"keep": 1, "deep": {"a": 1}, "gone": 1}
    )
    await Storage(storage).update_task(task_id, task_metadata={"deep": {"b": 2}, "gone": None})
    for task in (await load(storage, task_id), await Storage(storage).load_task(task_id, 0)):
        assert task is not None
        assert MessageToDict(task.metadata) == {"keep": 1, "deep": {"b": 2}, "gone": None}


async def test_a_call_is_atomic(storage: DurableStorage) -> None:
    """All parts of a call are written, or none of them (36)."""
    task_id = await new_task(storage)
    before = await load(storage, task_id)
    with pytest.raises(ConcurrencyError):
        await Storage(storage).update_task(
            task_id,
            COMPLETED,
            status_message=agent_message("x"),
            artifacts=[chunk("a", "x")],
            messages=[agent_message("x")],
            task_metadata={"k": 1},
            expected_version=7,
        )
    assert await load(storage, task_id) == before


async def test_blind_writes_are_repeated(storage: DurableStorage) -> None:
    """Concurrent writes without an expected version all get in, each exactly once (37)."""
    task_id = await new_task(storage)
    chunks = [str(n) for n in range(8)]
    written = await asyncio.gather(
        *(Storage(storage).update_task(task_id, artifacts=[chunk("a", text)]) for text in chunks)
    )
    assert sorted(written) == list(range(2, 10))
    assert sorted(texts(await load(storage, task_id), "a")) == chunks


async def test_what_no_task_can_hold_is_refused(storage: DurableStorage) -> None:
    """An unknown state or an artifact without id is an error, and nothing is written."""
    task_id = await new_task(storage)
    with pytest.raises(InvalidArgumentError):
        await Storage(storage).update_task(task_id, TaskState.TASK_STATE_UNSPECIFIED)
    with pytest.raises(InvalidArgumentError):
        await Storage(storage).update_task(task_id, 99)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        await Storage(storage).update_task(task_id, WORKING, artifacts=[chunk("", "x")])
    assert await Storage(storage).get_version(task_id) == 1
