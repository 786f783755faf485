"""From the table's stream to jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Artifact, TaskState

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.stream import PushStream, committed_by
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract.storage import Storage
from tests.support.messages import request
from tests.support.queues import MemoryQueue
from tests.unit.push.world import (
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    World,
    commit_item,
    config,
    logged,
    stream_record,
)

URL = "https://hooks.example.com/"


class RecordingQueue(MemoryQueue[PushJob]):
    """Knows what was sent, and fails for the tasks it is told to."""

    def __init__(self) -> None:
        super().__init__(PushJob)
        self.sent: list[PushJob] = []
        self.broken: set[str] = set()

    async def send(self, message: PushJob) -> None:
        if message.task_id in self.broken:
            raise UnavailableError
        self.sent.append(message)


class Bench:
    """A storage, its stream's records, and a queue that records."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(**settings)
        self.queue = RecordingQueue()
        events = self.world.settings.push_events
        self.stream = PushStream(self.world.storage, self.queue, events)
        self._number = 0

    def records(self) -> list[dict[str, Any]]:
        """What the stream says of the commits since the last time."""
        found = []
        for committed in self.world.committed:
            self._number += 1
            found.append(stream_record(committed, self._number))
        self.world.committed.clear()
        return found


async def test_each_configuration_of_a_task_has_a_job() -> None:
    """Each configuration of a task has one job, which holds ids and no content."""
    bench = Bench()
    head = await bench.world.open(URL, URL)
    bench.records()
    await bench.world.say(head, WORKING)
    assert await bench.stream.process(bench.records()) == []
    first, second = bench.queue.sent
    assert (first.config_id, second.config_id) == ("hook-1", "hook-2")
    assert first.model_dump() == {
        "scope": head.scope,
        "task_id": head.task_id,
        "incarnation": head.incarnation,
        "config_id": "hook-1",
        "version": 2,
        "trace": {},
    }
    assert first.group != second.group


async def test_a_batch_makes_one_job_for_a_receiver() -> None:
    """Several commits of one task in one batch are one job, of the newest."""
    bench = Bench()
    head = await bench.world.open(URL)
    await bench.world.say(head, WORKING, INPUT_REQUIRED, WORKING, COMPLETED)
    records = bench.records()
    await bench.stream.process([records[3], records[1], records[4], records[2], records[0]])
    assert [job.version for job in bench.queue.sent] == [5]


async def test_records_again_are_the_same_job() -> None:
    """A batch that is passed on twice sends the same deduplication id, until it was delivered."""
    bench = Bench()
    head = await bench.world.open(URL)
    await bench.world.say(head, WORKING)
    records = bench.records()
    for _ in range(2):
        await bench.stream.process(records)
    first, second = bench.queue.sent
    assert first.deduplication_id == second.deduplication_id
    push = await bench.world.push(head)
    assert await bench.world.storage.move_push(push, replace(push, version=2, index=0))
    await bench.stream.process(records)
    assert len(bench.queue.sent) == 2
    await bench.world.say(head, COMPLETED)
    await bench.stream.process(bench.records())
    assert bench.queue.sent[-1].deduplication_id != first.deduplication_id


@pytest.mark.parametrize(
    ("which", "versions"),
    [("ends", {4, 6}), ("statuses", {1, 2, 4, 5, 6}), ("all", {1, 2, 3, 4, 5, 6})],
)
async def test_which_commits_count(which: str, versions: set[int]) -> None:
    """Only commits with an event to push, by the setting, count."""
    bench = Bench(push_events=which)
    storage = bench.world.storage
    head = await bench.world.open(push=config(URL))
    await bench.world.say(head, WORKING)
    current = await storage.head(head.task_id)
    assert current is not None
    written = ArtifactWritten(Artifact(artifact_id="a"))
    await storage.commit(current, Commit(entries=(written,)))
    await bench.world.say(head, INPUT_REQUIRED, WORKING, COMPLETED)
    found = committed_by(bench.records(), bench.world.settings.push_events)
    assert {committed.version for committed in found} == versions


async def test_a_commits_trace_goes_with_the_job() -> None:
    """The header that the commit was stored with, and nothing without one."""
    bench = Bench()
    head = await bench.world.open(URL)
    bench.records()
    await bench.world.say(head, WORKING)
    [committed] = bench.world.committed
    await bench.stream.process([stream_record(committed | {"trace": "Root=1-2-3"}, 7)])
    assert bench.queue.sent[0].trace == {"x-amzn-trace-id": "Root=1-2-3"}


async def test_other_items_and_changes_make_no_job() -> None:
    """HEAD, flags, cursors, public keys, and commits that expire are in the same stream."""
    bench = Bench(push_events="all")
    head = await bench.world.open(URL)
    [record] = bench.records()
    change = record["dynamodb"]
    for sort in ("HEAD", "CANCEL", f"PUSH#{head.incarnation}#hook-1", "KEY#abc", "CONTEXT"):
        keys = {**change["Keys"], "SK": {"S": sort}}
        assert await bench.stream.process([{**record, "dynamodb": {**change, "Keys": keys}}]) == []
    for event_name in ("MODIFY", "REMOVE"):
        assert await bench.stream.process([{**record, "eventName": event_name}]) == []
    assert bench.queue.sent == []


async def test_a_configuration_that_is_told_already_has_no_job() -> None:
    """A configuration that was registered after a commit gets no job for that commit."""
    bench = Bench()
    head = await bench.world.open()
    await bench.world.say(head, WORKING)
    await bench.world.storage.put_push(config(URL, task_id=head.task_id))
    await bench.stream.process(bench.records())
    assert bench.queue.sent == []


async def test_an_earlier_incarnation_gets_no_job() -> None:
    """Records of a deleted task do not concern the one that has its id now."""
    bench = Bench()
    old = await bench.world.open(URL)
    await bench.world.say(old, COMPLETED)
    records = bench.records()
    await bench.world.storage.delete_task(old.task_id)
    assert await bench.stream.process(records) == []
    opened = await bench.world.storage.open_task(
        "ctx", request(), task_id=old.task_id, push=config(URL)
    )
    assert opened.created
    await bench.stream.process(records)
    assert bench.queue.sent == []


async def test_scopes_are_apart() -> None:
    """A commit to another owner's task of the same id makes no job."""
    bench = Bench()
    mine = await bench.world.open(URL)
    others = bench.world.storage.for_scope(Scope.of("", "other"))
    opened = await others.open_task("ctx", request(), task_id=mine.task_id)
    bench.records()
    await Storage(others).update_task(opened.head.task_id, COMPLETED)
    await bench.stream.process(bench.records())
    assert bench.queue.sent == []


async def test_a_failure_is_reported_with_its_records(caplog: pytest.LogCaptureFixture) -> None:
    """The stream passes them on again; other tasks of the batch get their jobs."""
    bench = Bench()
    good, bad = await bench.world.open(URL), await bench.world.open(URL)
    bench.records()
    await bench.world.say(bad, WORKING)
    await bench.world.say(good, WORKING)
    await bench.world.say(bad, COMPLETED)
    bench.queue.broken = {bad.task_id}
    records = bench.records()
    failed = await bench.stream.process(records)
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    assert failed == [numbers[0], numbers[2]]
    assert [job.task_id for job in bench.queue.sent] == [good.task_id]
    [line] = logged(caplog.records)
    assert (line["action"], line["task_id"]) == ("push_stream_failed", bad.task_id)
    bench.queue.broken = set()
    assert await bench.stream.process(records) == []
    assert {(job.task_id, job.version) for job in bench.queue.sent} == {
        (good.task_id, 2),
        (bad.task_id, 3),
    }


def test_a_record_of_a_later_part_is_the_same_commit() -> None:
    """A commit that was cut into parts has a record for each."""
    commit = commit_item("s", "t", "i", 3, TaskState.TASK_STATE_COMPLETED)
    first, second = stream_record(commit, 1), stream_record(commit, 2)
    second["dynamodb"]["Keys"]["SK"]["S"] = "EVENT#i#000000000003#001"
    versions = [found.version for found in committed_by([first, second], "ends")]
    assert versions == [3, 3]
