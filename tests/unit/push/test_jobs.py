"""Jobs, and the dead letters of what was given up. Their queues have a suite in tests/contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from a2a_serverless.errors import UnavailableError, UndecodableMessageError
from a2a_serverless.push.jobs import PushBackends, PushDeadLetter, PushJob
from a2a_serverless.queues.fifo import decode_message
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.wiring import PUSH_VISIBILITY_S, _push_on_aws
from a2a_serverless_tools.local.provision import queue_attributes
from a2a_serverless_tools.local.pushing import DELIVERY_S
from tests.support.clocks import ManualClock
from tests.support.memory import memory_keys
from tests.support.queues import MemoryQueue, left

JOB_BODY = '{"scope":"s","task_id":"t","incarnation":"i","config_id":"hook","version":1,"trace":{}}'
LETTER_BODY = (
    f'{{"job":{JOB_BODY},"event_id":"event","version":1,"index":0,'
    '"reason":"status 404","attempts":1,"failing_since":null}'
)
LETTER = PushDeadLetter.model_validate_json(LETTER_BODY)


def job(**fields: Any) -> PushJob:
    return PushJob.model_validate_json(JOB_BODY).model_copy(update=fields)


def test_groups_and_deduplication() -> None:
    """Each configuration of an incarnation has its group, each commit a deduplication id."""
    fields = ("config_id", "scope", "task_id", "incarnation")
    jobs = [job(), job(version=2), *(job(**{field: "other"}) for field in fields)]
    groups = [one.group for one in jobs]
    assert len({one.deduplication_id for one in jobs}) == 6
    assert groups[0] == groups[1]
    assert len(set(groups)) == 5
    assert job(trace={"traceparent": "x"}).deduplication_id == job().deduplication_id


def test_what_every_release_reads_and_writes() -> None:
    """Bodies and ids are those of the first release: two of them may share the queues."""
    assert (job().model_dump_json(), LETTER.model_dump_json()) == (JOB_BODY, LETTER_BODY)
    assert (LETTER.job, LETTER.reason) == (job(), "status 404")
    assert job().group == LETTER.group == "FtiykqiU4-rmfFPqA3DReA"
    assert job().deduplication_id == "w1iUfcGeflbfqNKGGZgSIQ"
    assert LETTER.deduplication_id == "xSAg5Y910ZnII99zzI0EpA"


@pytest.mark.parametrize(
    "body",
    [
        None,
        "secret text",
        "[]",
        '{"scope": "s", "task_id": "secret", "incarnation": "i", "config_id": "c", "version": 0}',
        '{"scope": "s", "task_id": "", "incarnation": "i", "config_id": "c", "version": 1}',
    ],
)
def test_a_message_that_is_no_job(body: str | None) -> None:
    """The error names the field, and repeats nothing."""
    with pytest.raises(UndecodableMessageError) as error:
        decode_message(PushJob, body)
    assert "secret" not in str(error.value)


async def test_a_dead_letter_is_kept() -> None:
    """A dead letter goes to the queue of dead letters; without such a queue only the log has it."""
    letters = MemoryQueue(PushDeadLetter)
    push = PushBackends(jobs=MemoryQueue(PushJob), dead_letters=letters, keys=memory_keys())
    await push.dead_letter(LETTER)
    assert left(letters) == [LETTER]
    await replace(push, dead_letters=None).dead_letter(LETTER)


async def test_what_is_there_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that does not answer is told; the one of dead letters need not be there."""
    letters = MemoryQueue(PushDeadLetter)
    monkeypatch.setattr(letters, "check", AsyncMock(side_effect=UnavailableError))
    push = PushBackends(jobs=MemoryQueue(PushJob), dead_letters=letters, keys=memory_keys())
    with pytest.raises(UnavailableError):
        await push.check()
    await replace(push, dead_letters=None).check()


def test_a_received_job_is_hidden_as_a_deployed_queue_hides_it() -> None:
    """Where `push` receives jobs itself a delivery has as long as one of PushFunction."""
    settings = Settings(push_queue="https://queue.example/jobs.fifo")
    jobs = _push_on_aws(settings, MemoryTable(INDEXES), ManualClock()).jobs
    hidden_s = int(queue_attributes("push_queue")["VisibilityTimeout"])
    assert vars(jobs)["_visibility_s"] == PUSH_VISIBILITY_S == hidden_s > DELIVERY_S
