"""From the table's stream to jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Artifact, TaskState, TaskStatus

from a2a_serverless.errors import FullGroupError, UnavailableError
from a2a_serverless.push.function import PushStream, _committed_by
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.storage.activity import activity, summed
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.rules import Commit
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
    unavailable,
)

URL = "https://hooks.example.com/"


class RecordingQueue(MemoryQueue[PushJob]):
    """Knows what was sent, and fails for the tasks it is told to."""

    def __init__(self) -> None:
        super().__init__(PushJob)
        self.sent: list[PushJob] = []
        self.broken: set[str] = set()
        self.full: set[str] = set()

    async def send(self, message: PushJob) -> None:
        if message.task_id in self.broken:
            raise UnavailableError
        if message.config_id in self.full:
            raise FullGroupError
        self.sent.append(message)


class Bench(World):
    """A world whose stream's records a test has, and the jobs that are made of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.queue_of_jobs = RecordingQueue()
        self.stream = PushStream(self.storage, self.queue_of_jobs, self.settings.push_events)

    def records(self) -> list[dict[str, Any]]:
        """What the stream says of the commits since the last time."""
        found = [stream_record(committed, next(self._numbers)) for committed in self.committed]
        self.committed.clear()
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_each_configuration_of_a_task_has_a_job(bench: Bench) -> None:
    """Each configuration of a task has one job, which holds ids and no content."""
    head = await bench.open(URL, URL)
    bench.records()
    await bench.say(head, WORKING)
    assert await bench.stream.process(bench.records()) == []
    first, second = bench.queue_of_jobs.sent
    assert (first.config_id, second.config_id) == ("hook-1", "hook-2")
    named = {"scope": head.scope, "task_id": head.task_id, "incarnation": head.incarnation}
    assert first.model_dump() == {**named, "config_id": "hook-1", "version": 2, "trace": {}}
    assert first.group != second.group


async def test_a_batch_makes_one_job_for_a_receiver(bench: Bench) -> None:
    """Several commits of one task in one batch are one job, of the newest."""
    head = await bench.open(URL)
    await bench.say(head, WORKING, INPUT_REQUIRED, WORKING, COMPLETED)
    records = bench.records()
    await bench.stream.process([records[3], records[1], records[4], records[2], records[0]])
    assert [job.version for job in bench.queue_of_jobs.sent] == [5]


async def test_records_again_are_the_same_job(bench: Bench) -> None:
    """A batch that is passed on twice sends the same deduplication id, until it was delivered."""
    head = await bench.open(URL)
    await bench.say(head, WORKING)
    records = bench.records()
    for _ in range(2):
        await bench.stream.process(records)
    first, second = bench.queue_of_jobs.sent
    assert first.deduplication_id == second.deduplication_id
    push = await bench.push(head)
    assert await bench.storage.webhooks.move(push, replace(push, version=2, index=0))
    await bench.stream.process(records)
    assert len(bench.queue_of_jobs.sent) == 2
    await bench.say(head, COMPLETED)
    await bench.stream.process(bench.records())
    assert bench.queue_of_jobs.sent[-1].deduplication_id != first.deduplication_id


async def test_a_receiver_with_too_many_jobs_holds_up_no_other(bench: Bench) -> None:
    """A group that is full needs no further job: those that wait read the whole log."""
    head = await bench.open(push=config(URL, "away"))
    own = config(URL, "other", task_id=head.task_id)
    await bench.storage.webhooks.put(own)
    await bench.say(head, WORKING)
    bench.queue_of_jobs.full.add("away")
    assert await bench.stream.process(bench.records()) == []
    assert {job.config_id for job in bench.queue_of_jobs.sent} == {"other"}


@pytest.mark.parametrize(
    ("which", "versions"),
    [("ends", {4, 6}), ("statuses", {1, 2, 4, 5, 6}), ("all", {1, 2, 3, 4, 5, 6})],
)
async def test_which_commits_count(which: str, versions: set[int]) -> None:
    """Only commits with an event to push, by the setting, count."""
    bench = Bench(push_events=which)
    storage = bench.storage
    head = await bench.open(push=config(URL))
    await bench.say(head, WORKING)
    written = ArtifactWritten(Artifact(artifact_id="a"))
    await storage.commit(await bench.say(head), Commit(entries=(written,)))
    await bench.say(head, INPUT_REQUIRED, WORKING, COMPLETED)
    found = _committed_by(bench.records(), bench.settings.push_events)
    assert {committed.version for committed in found} == versions


async def test_other_items_and_changes_make_no_job() -> None:
    """HEAD, flags, cursors, public keys, and commits that expire are in the same stream."""
    bench = Bench(push_events="all")
    head = await bench.open(URL)
    [record] = bench.records()
    change = record["dynamodb"]
    for sort in ("HEAD", "CANCEL", f"PUSH#{head.incarnation}#hook-1", "KEY#abc", "CONTEXT"):
        keys = {**change["Keys"], "SK": {"S": sort}}
        assert await bench.stream.process([{**record, "dynamodb": {**change, "Keys": keys}}]) == []
    for event_name in ("MODIFY", "REMOVE"):
        assert await bench.stream.process([{**record, "eventName": event_name}]) == []
    assert bench.queue_of_jobs.sent == []


async def test_an_earlier_incarnation_gets_no_job(bench: Bench) -> None:
    """Records of a deleted task do not concern the one that has its id now."""
    old = await bench.open(URL)
    await bench.say(old, COMPLETED)
    records = bench.records()
    await delete_task(bench.storage, old.task_id)
    assert await bench.stream.process(records) == []
    opened = await bench.storage.open_task("ctx", request(), task_id=old.task_id, push=config(URL))
    assert opened.created
    await bench.stream.process(records)
    assert bench.queue_of_jobs.sent == []


async def test_failed_records_are_reported(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The stream passes them on again; other tasks of the batch get their jobs."""
    good, bad = await bench.open(URL), await bench.open(URL)
    bench.records()
    await bench.say(bad, WORKING)
    await bench.say(good, WORKING)
    await bench.say(bad, COMPLETED)
    bench.queue_of_jobs.broken = {bad.task_id}
    records = bench.records()
    failed = await bench.stream.process(records)
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    assert failed == [numbers[0], numbers[2]]
    assert [job.task_id for job in bench.queue_of_jobs.sent] == [good.task_id]
    [line] = logged(caplog.records)
    assert (line["action"], line["task_id"]) == ("push_stream_failed", bad.task_id)
    bench.queue_of_jobs.broken = set()
    assert await bench.stream.process(records) == []
    sent = {(job.task_id, job.version) for job in bench.queue_of_jobs.sent}
    assert sent == {(good.task_id, 2), (bad.task_id, 3)}


def test_a_record_of_a_later_part_is_the_same_commit() -> None:
    """A commit that was cut into parts has a record for each."""
    commit = commit_item("s", "t", "i", 3, TaskState.TASK_STATE_COMPLETED)
    first, second = stream_record(commit, 1), stream_record(commit, 2)
    second["dynamodb"]["Keys"]["SK"]["S"] = "EVENT#i#000000000003#001"
    versions = [found.version for found in _committed_by([first, second], "ends")]
    assert versions == [3, 3]


async def test_ends_are_counted_up_to_what_comes_again(bench: Bench) -> None:
    """A batch counts the tasks that ended, but none from the first record on that comes again."""
    heads = [await bench.open(URL) for _ in range(3)]
    bench.records()
    for head in heads:
        await bench.say(head, WORKING, COMPLETED)
    records = bench.records()
    bench.queue_of_jobs.broken = {heads[1].task_id}
    again = set(await bench.stream.process(records))
    assert again
    counted = summed((await activity(bench.storage.table, bench.clock.now_ms())).ends)
    assert counted.states == {"completed": 1}
    bench.queue_of_jobs.broken = set()
    first = next(at for at, one in enumerate(records) if one["dynamodb"]["SequenceNumber"] in again)
    assert await bench.stream.process(records[first:]) == []
    counted = summed((await activity(bench.storage.table, bench.clock.now_ms())).ends)
    assert counted.states == {"completed": 3}
    assert sum(counted.took.values()) == 3
    assert sum(counted.waited.values()) == 0  # nothing has claimed them


@pytest.mark.parametrize(
    ("workers", "version"), [(("a:6 x", "a:7 y"), "7"), (("a:6 x", "h 1"), "")]
)
async def test_an_ends_version(bench: Bench, workers: tuple[str, ...], version: str) -> None:
    """Also one that another process has written, after the death of the worker."""
    head = await bench.say(await bench.open(URL))
    for worker in workers:
        claim = Commit(token=worker, claims=True, worker=worker)
        head = await bench.storage.commit(head, claim)
    await bench.storage.commit(head, Commit(entries=(StatusChanged(TaskStatus(state=COMPLETED)),)))
    assert await bench.stream.process(bench.records()) == []
    (counted,) = (await activity(bench.storage.table, bench.clock.now_ms())).ends
    assert (counted.code_version, counted.states) == (version, {"completed": 1})


async def test_webhooks_do_not_wait_for_counts(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the counts cannot be written, the jobs are sent all the same, and a line says so."""
    head = await bench.open(URL)
    await bench.say(head, COMPLETED)
    records = bench.records()
    monkeypatch.setattr(bench.storage.table, "write", unavailable)
    assert await bench.stream.process(records) == []
    assert len(bench.queue_of_jobs.sent) == 1
    assert "Tasks that ended are not counted" in caplog.text
