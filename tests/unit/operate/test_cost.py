"""What a task has cost: bounds where a time is unknown, prices where there are some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2a_serverless.storage.activity import process_name
from a2a_serverless.tasks.entries import Caller, ModelsUsed, Restarted, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import LOST, AttemptEnd
from a2a_serverless.tasks.usage import Usage
from a2a_serverless_tools.operate import prices
from a2a_serverless_tools.operate.cost import NOT_COUNTED, Cost, Workers, cost_of, dollars
from tests.support.heads import with_fields
from tests.support.messages import request
from tests.unit.operate.timelines import timeline_of
from tests.unit.tasks.heads import opened

FUNCTION = "agent-worker:12 2026/11/22/agent-worker[12]4f1c"
HOST = "host-a 17"
NAMED = Workers(memory_mb=2048, timeout_s=120)


def log(*, worker: str, last_s: int = 10, next_s: int = 70) -> list[Record]:
    """A turn whose first attempt is lost after its last sign; the second one ends it in 4 s."""
    at, end = next_s * 1000, AttemptEnd(token="a", reason=LOST)
    on: dict[str, Any] = {"worker": worker}
    opening = TurnOpened(request(), Caller("ann"))
    return [
        Record(version=1, entries=(opening,), at=0),
        Record(version=2, entries=(), token="a", at=1_000, **on),
        Record(version=3, entries=(), token="a", at=last_s * 1000),
        Record(version=4, entries=(Restarted(1),), token="b", at=at, ended=end, **on),
        Record(version=5, entries=(TurnEnded(),), token="b", at=at + 4_000),
    ]


def cost(records: list[Record], workers: Workers = NAMED, *models: Usage) -> Cost:
    return cost_of(timeline_of(replace(opened(), usage=models), records), workers)


def line(of: Cost, what: str) -> tuple[str, float | None, float | None]:
    (found,) = [one for one in of.lines if one.what == what]
    return found.amount, found.least, found.most


def test_a_lost_attempt_has_bounds() -> None:
    """It ran until its last sign at least, and until the next one began at most.

    No invocation is longer than its timeout: it was cut off before. Turns that share a worker have
    at least their part of its time, at most all of it.
    """
    of = cost(log(worker=FUNCTION))
    second = 2 * prices.GB_SECOND
    amount, least, most = line(of, "Time of the worker")
    assert amount == "13.0 to 73.0 s of 2,048 MB"
    assert [least, most] == pytest.approx([13 * second, 73 * second])
    assert of.most - of.least == pytest.approx(60 * second)
    assert dollars(of.least, of.most) == f"${of.least:.7f} to ${of.most:.7f}"
    (told,) = [one.counted_from for one in of.lines if "Time" in one.what]
    unknown = "of one whose end is unknown from the last sign up to the next attempt or 120 s"
    assert told == f"starts and ends of its attempts; {unknown}"
    late = line(cost(log(worker=FUNCTION, next_s=7_200)), "Time of the worker")
    assert late[0] == "13.0 to 124.0 s of 2,048 MB"
    shared = line(cost(log(worker=FUNCTION), replace(NAMED, turns=4)), "Time of the worker")
    assert shared[1:] == pytest.approx([13 / 4 * second, 73 * second])


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        ("2026/11/22/[12]4f1c", "Time of the worker"),
        ("2026/11/22/agent-worker[12]4f1c", "Time of the worker"),
        ("a form that AWS will choose", "Time of the worker"),
        ("", "Time of workers outside of Lambda"),
    ],
)
def test_a_functions_own_name(monkeypatch: pytest.MonkeyPatch, stream: str, what: str) -> None:
    """Its time has a price, whatever its log stream is called; a process elsewhere has none."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "agent-worker")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_VERSION", "12")
    monkeypatch.setenv("AWS_LAMBDA_LOG_STREAM_NAME", stream)
    found = cost(log(worker=process_name.__wrapped__()))
    assert [one.what for one in found.lines if one.what.startswith("Time of")] == [what]


def test_time_without_a_price_is_in_no_sum() -> None:
    """Its seconds are told, and the sum says that they are missing."""
    for worker, workers, where in (
        (HOST, NAMED, "workers that you pay by the hour"),
        (FUNCTION, Workers(), "the function, whose memory --stack NAME tells"),
    ):
        of, missing = cost(log(worker=worker), workers), f"13.0 to 73.0 s of {where}"
        assert (of.unpriced, of.least) == ((missing,), of.most)
        assert f"Counted, and not in the sum: {missing}." in [*of.sentences()]


def test_a_running_attempt_counts_up_to_its_last_sign() -> None:
    """Whether its process still lives is not known."""
    head = with_fields(opened(), token="a", attempts=1)
    of = cost_of(timeline_of(head, log(worker=FUNCTION)[:3]), NAMED)
    assert line(of, "Time of the worker")[0] == "9.0 s of 2,048 MB"


def test_what_is_not_counted_is_told_with_the_sum() -> None:
    """The sum is that of the lines; every line says what it was counted from."""
    of = cost(log(worker=FUNCTION))
    assert of.least == pytest.approx(sum(one.least or 0 for one in of.lines))
    assert all(one.counted_from for one in of.lines)
    *_, last = of.sentences()
    assert last == f"Not counted: {'; '.join(NOT_COUNTED)}."
    amount, least, _ = line(of, "Requests to the queue")
    assert (amount, least) == ("4", 4 * prices.SQS_REQUEST)
    units = timeline_of(opened(), log(worker=FUNCTION)).units
    assert line(of, "Storing its commits")[1] == units * prices.WRITE_UNIT


def test_models_have_the_owners_prices() -> None:
    """Their money is no dollars: it is told beside the sum, with the calls that have no price."""
    records = log(worker=FUNCTION)
    used = (Usage("big", 2, 1_200, 300, cost=4_200), Usage("small", 1, 10, 0, unpriced=1))
    records[4] = replace(records[4], entries=(ModelsUsed(used), *records[4].entries))
    of = cost(records, NAMED, *used)
    assert of.models == pytest.approx(0.0042)
    assert of.unpriced == ("1 calls of models without a price",)
    assert "Models: 0.0042 in the currency of your price list." in [*of.sentences()]
    assert line(of, "Model big")[1] is None
    none = cost(records, NAMED, Usage("big", 1, 100, 20))
    assert (none.models, none.unpriced) == (None, ("120 tokens without a price",))
