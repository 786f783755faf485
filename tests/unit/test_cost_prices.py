"""The bill of `benchmarks.cost`: what is no multiplication."""

from __future__ import annotations

import pytest

from benchmarks.cost_prices import (
    STREAMED_REQUEST_BYTES,
    Counts,
    bill,
    billed_requests,
)
from benchmarks.cost_shared import fargate
from benchmarks.cost_workers import SETTINGS


@pytest.mark.parametrize(
    ("streamed_bytes", "requests"),
    [(0, 1), (1, 1), (STREAMED_REQUEST_BYTES, 1), (STREAMED_REQUEST_BYTES + 1, 2)],
)
def test_streamed_answers(streamed_bytes: int, requests: int) -> None:
    """API Gateway bills each 10 MB that a streamed answer begins as a request, and at least one."""
    assert billed_requests(streamed_bytes) == requests


def test_a_worker_outside_of_lambda_is_paid_by_the_hour() -> None:
    """At a task a second one worker of fargate.yaml is enough; a million seconds of it are paid."""
    hours = fargate()
    assert hours == {"vcpu_hours": 0.25 / 3600, "gb_hours": 0.5 / 3600, "address_hours": 1 / 3600}
    dollars = bill(Counts(**hours), times=1_000_000, kept_days=30)
    assert dollars["Fargate"] == pytest.approx(4.13, abs=0.01)
    assert sum(dollars.values()) == dollars["Fargate"]
    month = {name: hours * 720 * 3600 for name, hours in fargate().items()}
    assert bill(Counts(**month), times=1, kept_days=30)["Fargate"] == pytest.approx(10.71, abs=0.01)
    assert month["vcpu_hours"] * 0.03238 + month["gb_hours"] * 0.00356 == pytest.approx(
        7.11, abs=0.01
    )


@pytest.mark.parametrize(("setting", "workers"), [("1", 90), ("10", 9), ("25", 4)])
def test_workers_have_three_times_the_places(setting: str, workers: int) -> None:
    """Thirty turns that wait at the same time get as many workers as docs/operations.md advises."""
    assert SETTINGS[setting].workers(30) == workers
