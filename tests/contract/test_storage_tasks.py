"""The Storage contract: creating, loading and updating tasks, of any size."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from a2a.types import Artifact, Part, Task, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_serverless import errors
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES, DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import KNOWN, TERMINAL
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.databases import versions
from tests.support.messages import agent_message, artifact, chunk, message, request, said, texts
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
KB = 1024
MB = 1024 * KB


async def new_task(tasks: Storage) -> str:
    return (await tasks.create_task("ctx", message())).id


async def load(tasks: Storage, task_id: str) -> Task:
    return present(await tasks.load_task(task_id))


async def test_a_new_task_is_submitted(storage: DurableStorage, tasks: Storage) -> None:
    """With id, context, version 1, its message as given (1-4, 17); a missing one: None (12, 38)."""
    sent = message("hi")
    before = sent.SerializeToString()
    task = await tasks.create_task("ctx", sent)
    assert sent.SerializeToString() == before
    sent.task_id, sent.context_id = task.id, "ctx"
    assert (bool(task.id), task.context_id) == (True, "ctx")
    assert task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert (list(task.history), list(task.artifacts)) == ([sent], [])
    assert await tasks.load_task(task.id) == task
    assert await tasks.get_version(task.id) == 1
    assert await versions(storage, task.id) == [1]
    assert await tasks.load_task("missing") is None
    assert await tasks.load_task("missing", 0, include_artifacts=False) is None
    assert await tasks.get_version("missing") is None


async def test_a_key_makes_one_task(storage: DurableStorage, tasks: Storage) -> None:
    """A repetition returns it as it is now (5, 8); another context, or no key, another (6, 7)."""
    first = await storage.open_task("ctx", request(), idempotency_key="key")
    again = await storage.open_task("ctx", request(), idempotency_key="key")
    assert (first.created, again.created) == (True, False)
    assert (first.head, again.log) == (again.head, None)
    assert await storage.read(first.head.task_id) == first.log
    await tasks.update_task(first.head.task_id, WORKING)
    later = await tasks.create_task("ctx", message(), idempotency_key="key")
    assert later.status.state == WORKING
    ids = set()
    for context, key in (("a", "b:c"), ("a:b", "c"), ("a", "c"), ("a", None), ("a", None)):
        sent = message(message_id="m")
        ids.add((await tasks.create_task(context, sent, idempotency_key=key)).id)
    assert len(ids) == 5


async def test_concurrent_creations_have_one_winner(storage: DurableStorage) -> None:
    """Of creations with one key at the same time exactly one creates (9)."""
    opened = await asyncio.gather(
        *(storage.open_task("ctx", request(str(n)), idempotency_key="key") for n in range(8))
    )
    assert sum(one.created for one in opened) == 1
    assert len({one.head.incarnation for one in opened}) == 1


async def test_a_load_has_what_was_asked_for(tasks: Storage) -> None:
    """All of the history, none or the last; artifacts or none (13, 15, 28); always the status."""
    task_id = (await tasks.create_task("ctx", message("1"))).id
    await tasks.update_task(task_id, messages=[agent_message("2"), agent_message("3")])
    await tasks.update_task(task_id, WORKING, status_message=agent_message("at work"))
    written: dict[str, Any] = {"artifacts": [chunk("a", "x")], "messages": [agent_message("4")]}
    await tasks.update_task(task_id, **written, task_metadata={"k": {"deep": [1, None]}})
    whole = await load(tasks, task_id)
    assert [a.artifact_id for a in whole.artifacts] == ["a"]
    lengths = {None: "1234", 0: "", 1: "4", 2: "34", 4: "1234", 9: "1234"}
    for length, expected in lengths.items():
        assert said(present(await tasks.load_task(task_id, length))) == [*expected]
    for bad in (-1, -100, 1.0, "1", True):
        with pytest.raises(errors.InvalidArgumentError):
            await tasks.load_task(task_id, bad)  # type: ignore[arg-type]
    without = present(await tasks.load_task(task_id, include_artifacts=False))
    assert (list(without.artifacts), without.history) == ([], whole.history)
    short = present(await tasks.load_task(task_id, 0, include_artifacts=False))
    del whole.history[:], whole.artifacts[:]
    assert short == whole


async def test_a_loaded_task_is_the_callers_own(tasks: Storage) -> None:
    """Changing what was given or returned changes nothing that is stored (16)."""
    sent, written = message("hi"), artifact("a", "x")
    task = await tasks.create_task("ctx", sent)
    await tasks.update_task(task.id, artifacts=[ArtifactWrite(written)])
    loaded = await load(tasks, task.id)
    for mine in (sent, task.history[0], written, loaded.artifacts[0]):
        mine.parts[0].text = "changed"
    loaded.status.state = TaskState.TASK_STATE_FAILED
    again = await load(tasks, task.id)
    assert (said(again), texts(again, "a")) == (["hi"], ["x"])
    assert again.status.state == TaskState.TASK_STATE_SUBMITTED


async def test_the_expected_version_is_checked(storage: DurableStorage, tasks: Storage) -> None:
    """Each update adds 1; a version that is not expected is an error, before others (18 to 21)."""
    task_id = await new_task(tasks)
    assert await tasks.update_task(task_id, WORKING, expected_version=1) == 2
    assert await tasks.update_task(task_id) == 3
    assert await tasks.update_task(task_id, messages=[agent_message("x")]) == 4
    assert await versions(storage, task_id) == [1, 2, 3, 4]
    for wrong in (1, 3, 5, 0):
        with pytest.raises(errors.ConcurrencyError) as caught:
            await tasks.update_task(task_id, COMPLETED, expected_version=wrong)
        assert caught.value.current_version == 4
    assert (await load(tasks, task_id)).status.state == WORKING
    assert await tasks.update_task(task_id, COMPLETED) == 5
    with pytest.raises(errors.ConcurrencyError):
        await tasks.update_task(task_id, WORKING, expected_version=4)
    with pytest.raises(errors.TaskTerminalStateError):
        await tasks.update_task(task_id, WORKING, expected_version=5)
    for expected in (None, 1):
        with pytest.raises(errors.TaskNotFoundError):
            await tasks.update_task("missing", WORKING, expected_version=expected)


async def test_a_terminal_state_is_final(tasks: Storage) -> None:
    """No transition leaves it, not even to itself, and nothing is written; content is (22, 23)."""
    late = [chunk("a", "late")]
    for terminal in sorted(TERMINAL):
        task_id = await new_task(tasks)
        await tasks.update_task(task_id, terminal)
        before = await load(tasks, task_id)
        for state in (terminal, WORKING, COMPLETED):
            with pytest.raises(errors.TaskTerminalStateError):
                await tasks.update_task(task_id, state, artifacts=late)
        assert await load(tasks, task_id) == before
        said_late = [agent_message("late")]
        assert await tasks.update_task(task_id, messages=said_late, artifacts=late) == 3
        task = await load(tasks, task_id)
        assert (task.status.state, said(task)) == (terminal, ["hello", "late"])
        assert texts(task, "a") == ["late"]


async def test_storage_has_no_state_machine(tasks: Storage) -> None:
    """Any non-terminal state may become any other, itself included (25)."""
    task_id = await new_task(tasks)
    open_states = sorted(KNOWN - TERMINAL)
    for state in itertools.chain(*itertools.product(open_states, open_states)):
        await tasks.update_task(task_id, state)
        assert (await load(tasks, task_id)).status.state == state


async def test_a_status_is_the_latest_states(tasks: Storage) -> None:
    """Its message comes and goes with its state (24, 26); times rise, though the clock stands."""
    task_id = await new_task(tasks)
    stamps = [(await load(tasks, task_id)).status.timestamp.ToNanoseconds()]
    for text in ("busy", "", "busy"):
        busy = agent_message(text) if text else None
        await tasks.update_task(task_id, WORKING, status_message=busy)
        status = (await load(tasks, task_id)).status
        assert [part.text for part in status.message.parts] == ([text] if text else [])
        stamps.append(status.timestamp.ToNanoseconds())
    assert stamps == sorted(set(stamps))
    await tasks.update_task(task_id, artifacts=[chunk("a", "x")])
    await tasks.update_task(task_id, status_message=agent_message("lost"))
    assert (await load(tasks, task_id)).status == status


async def test_artifacts_are_replaced_or_appended_to(tasks: Storage) -> None:
    """In the order of the call: whole and in their place, or their parts and metadata (29-32)."""
    task_id = await new_task(tasks)
    first = Artifact(artifact_id="a", name="old", parts=[Part(text="x"), Part(text="y")])
    whole = Artifact(artifact_id="b", name="kept", parts=[Part(text="x")])
    whole.metadata.update({"one": 1, "two": 2})
    more = Artifact(artifact_id="b", name="ignored", parts=[Part(text="y")])
    more.metadata.update({"two": 3})
    await tasks.update_task(task_id, artifacts=[ArtifactWrite(first), ArtifactWrite(whole)])
    replacing, appending = ArtifactWrite(artifact("a", "z")), ArtifactWrite(more, append=True)
    mixed = [chunk("a", "lost"), replacing, appending, chunk("a", "2"), chunk("c", "1")]
    await tasks.update_task(task_id, artifacts=mixed)
    task = await load(tasks, task_id)
    named = [(artifact.artifact_id, artifact.name) for artifact in task.artifacts]
    assert named == [("a", ""), ("b", "kept"), ("c", "")]
    assert [texts(task, name) for name in "abc"] == [["z", "2"], ["x", "y"], ["1"]]
    assert MessageToDict(task.artifacts[1].metadata) == {"one": 1, "two": 3}


async def test_metadata_is_merged_shallowly(tasks: Storage) -> None:
    """Keys merge, the last writer wins, nested values are replaced, null is a value (33)."""
    task_id = await new_task(tasks)
    await tasks.update_task(task_id, task_metadata={"keep": 1, "deep": {"a": 1}, "gone": 1})
    await tasks.update_task(task_id, task_metadata={"deep": {"b": 2}, "gone": None})
    for task in (await load(tasks, task_id), present(await tasks.load_task(task_id, 0))):
        assert MessageToDict(task.metadata) == {"keep": 1, "deep": {"b": 2}, "gone": None}


async def test_a_call_is_atomic(tasks: Storage) -> None:
    """All parts of a call are written, or none: also where a part is what no task can hold (36)."""
    task_id = await new_task(tasks)
    before = await load(tasks, task_id)
    parts: dict[str, Any] = {"artifacts": [chunk("a", "x")], "task_metadata": {"k": 1}}
    parts |= {"status_message": agent_message("x"), "messages": [agent_message("x")]}
    with pytest.raises(errors.ConcurrencyError):
        await tasks.update_task(task_id, COMPLETED, **parts, expected_version=7)
    unnamed = parts | {"artifacts": [chunk("", "x")]}
    wrong = ((TaskState.TASK_STATE_UNSPECIFIED, parts), (99, parts), (WORKING, unnamed))
    for state, given in wrong:
        with pytest.raises(errors.InvalidArgumentError):
            await tasks.update_task(task_id, state, **given)  # type: ignore[arg-type]
    assert await load(tasks, task_id) == before


async def test_blind_writes_are_repeated(tasks: Storage) -> None:
    """Concurrent writes without an expected version all get in, each exactly once (37)."""
    task_id = await new_task(tasks)
    chunks = [str(n) for n in range(8)]
    written = await asyncio.gather(
        *(tasks.update_task(task_id, artifacts=[chunk("a", text)]) for text in chunks)
    )
    assert sorted(written) == list(range(2, 10))
    assert sorted(texts(await load(tasks, task_id), "a")) == chunks


async def test_an_artifact_of_many_chunks(storage: DurableStorage, tasks: Storage) -> None:
    """A task beyond one page of a query is read whole, and from any version on."""
    task_id = await new_task(tasks)
    for number in range(8):
        await tasks.update_task(task_id, artifacts=[chunk("a", str(number) * 300 * KB)])
    expected = [str(number) * 300 * KB for number in range(8)]
    assert texts(await load(tasks, task_id), "a") == expected
    head = present(await storage.head(task_id))
    log = present(await storage.read(task_id, after=4, incarnation=head.incarnation))
    assert [record.version for record in log.records] == [5, 6, 7, 8, 9]


async def test_a_long_history(tasks: Storage) -> None:
    """A first message of 1 MB, and a thousand more, keep their order; the last n are found."""
    expected = ["x" * MB, *map(str, range(999))]
    task = await tasks.create_task("ctx", message(expected[0]), idempotency_key="key")
    for start in range(1, 1000, 100):
        said_now = [agent_message(text) for text in expected[start : start + 100]]
        await tasks.update_task(task.id, messages=said_now)
    again = await tasks.create_task("ctx", message(), idempotency_key="key")
    assert said(again) == said(await load(tasks, task.id)) == expected
    assert said(present(await tasks.load_task(task.id, 3))) == expected[-3:]


@pytest.mark.parametrize("size", [100, 3 * KB, 5 * KB, 400 * KB])
async def test_a_status_message_of_any_size(tasks: Storage, size: int) -> None:
    """A whole answer in a status is found in the short form, the whole task and listings."""
    task_id, answer, text = await new_task(tasks), agent_message("x" * size), "y" * size
    await tasks.update_task(task_id, COMPLETED, status_message=answer, task_metadata={"k": text})
    short = present(await tasks.load_task(task_id, 0, include_artifacts=False))
    listed = await tasks.list_tasks(ListTasksQuery(history_length=0))
    for found in (short, await load(tasks, task_id), *listed.tasks):
        assert (found.status.message, found.metadata["k"]) == (answer, text)


async def test_a_commit_has_a_limit(storage: DurableStorage, tasks: Storage) -> None:
    """A call with more than 4 MB raises an error that names the limit, and writes nothing."""
    task_id = await new_task(tasks)
    large = [ArtifactWrite(Artifact(artifact_id="a", parts=[Part(raw=bytes(MAX_COMMIT_BYTES))]))]
    with pytest.raises(errors.CommitTooLargeError, match="'a' has 4000") as caught:
        await tasks.update_task(task_id, COMPLETED, artifacts=large)
    assert caught.value.limit == MAX_COMMIT_BYTES < caught.value.size
    assert str(MAX_COMMIT_BYTES) in str(caught.value)
    assert await versions(storage, task_id) == [1]
    with pytest.raises(errors.CommitTooLargeError, match="URL"):
        await tasks.create_task("ctx", message("x" * MAX_COMMIT_BYTES))
    assert (await tasks.list_tasks(ListTasksQuery())).total_size == 1


@pytest.mark.long(but=1)
async def test_the_largest_commit_is_stored(storage: DurableStorage, tasks: Storage) -> None:
    """A commit that just fits, with the largest state of a context, is one transaction."""
    head = (await storage.open_task("x" * 512, request())).head
    state = "y" * 339_000
    words = range((MAX_COMMIT_BYTES - len(state) - 2000) // 4)
    raw = b"".join(number.to_bytes(4, "big") for number in words)  # each part has its own bytes
    large = ArtifactWritten(Artifact(artifact_id="a", parts=[Part(raw=raw)]))
    await storage.commit(head, Commit(entries=(large,), context_write=context_write(state)))
    assert (await load(tasks, head.task_id)).artifacts[0].parts[0].raw == raw
    assert await tasks.load_context("x" * 512) == state


def nested(levels: int) -> ArtifactWrite:
    """An artifact whose data is `levels` lists deep."""
    data: Any = 1
    for _ in range(levels):
        data = [data]
    part = Part()
    ParseDict(data, part.data)
    return ArtifactWrite(Artifact(artifact_id="deep", parts=[part]))


async def test_what_cannot_be_read_back_is_refused(tasks: Storage) -> None:
    """Data nested beyond protobuf's decoder is a typed error, and the task stays readable."""
    task_id = await new_task(tasks)
    await tasks.update_task(task_id, artifacts=[nested(30)])
    with pytest.raises(errors.InvalidArgumentError, match="nested"):
        await tasks.update_task(task_id, artifacts=[nested(49)])
    assert await tasks.get_version(task_id) == 2
    assert (await tasks.list_tasks(ListTasksQuery(include_artifacts=True))).tasks[0].artifacts
