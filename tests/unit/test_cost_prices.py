"""The bill of `benchmarks.cost`: what is no multiplication."""

from __future__ import annotations

import re

import pytest

from a2a_serverless_tools.operate.prices import SECONDS_OF_MONTH
from benchmarks.cost import at_rest, chosen, document
from benchmarks.cost_prices import (
    STREAMED_REQUEST_BYTES,
    Counts,
    bill,
    billed_requests,
)
from benchmarks.cost_shared import fargate
from benchmarks.cost_workers import SETTINGS
from tests.support import pages
from tests.unit.test_load_page import rows


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
    """Thirty turns that wait at the same time get as many workers as the page `turns` advises."""
    assert SETTINGS[setting].workers(30) == workers


AT_REST = {
    "AWS::CloudWatch::Alarm",
    "AWS::CloudWatch::Dashboard",
    "AWS::SecretsManager::Secret",
    "AWS::Serverless::Function",  # the sweeper's rounds, event sources
    "AWS::Logs::LogGroup",
}
FREE_AT_REST = {
    "AWS::ApiGateway::BasePathMapping",
    "AWS::ApiGateway::DomainName",
    "AWS::DynamoDB::Table",  # by what is stored
    "AWS::IAM::ManagedPolicy",
    "AWS::IAM::Role",
    "AWS::Lambda::Permission",
    "AWS::Route53::RecordSet",  # the zone is its owner's
    "AWS::S3::Bucket",
    "AWS::S3::BucketPolicy",
    "AWS::SQS::Queue",
    "AWS::Serverless::Api",
    "AWS::Serverless::LayerVersion",
    "AWS::WAFv2::WebACLAssociation",  # the web ACL is its owner's
}


def test_every_kind_of_resource_is_known_at_rest() -> None:
    """A new kind of resource has a price in the table of a month without tasks, or none at rest."""
    kinds = {resource["Type"] for resource in document()["Resources"].values()}
    assert kinds == AT_REST | FREE_AT_REST


def test_the_month_without_tasks_follows_from_the_template() -> None:
    """Each part's price is computed again: from template, prices, and the counts that it names."""
    told = rows("a month without tasks, in dollars")
    units = re.search(r"each ([\d.]+) read units", told["sweeper"][1])
    logged = re.search(r"(\d+) MB", told["logs"][1])
    assert units is not None
    assert logged is not None
    of_a_round = int(logged[1]) * 1_000_000 / (SECONDS_OF_MONTH / 60)
    rests = [*at_rest(float(units[1]), of_a_round)]
    expected = {part: [f"{dollars:.2f}", what] for part, dollars, what in rests}
    all_of_it = sum(dollars for _, dollars, _ in rests)
    metrics = re.search(r"(\d+) custom metrics", told["with tasks all the time"][1])
    assert metrics is not None
    more = {
        f"with {part}": [f"{dollars:.2f}", what] for part, dollars, what in chosen(int(metrics[1]))
    }
    parts = {name: cells for name, cells in told.items() if len(cells) == 2 and cells[-1]}
    del parts["a month without tasks, in dollars"]
    assert {name: it for name, it in parts.items() if name != "**all**"} == expected | more
    assert told["**all**"][0] == f"**{all_of_it:.2f}**"
    readme = (pages.DOCS.parent / "README.md").read_text(encoding="utf-8")
    echo = float(rows("a million tasks, in dollars", "cost")["**all**"][0])
    assert f"${echo:.0f}, a month without tasks ${all_of_it:.0f}." in readme
    assert rows("load")["a month without tasks"][-1] == f"{all_of_it:.0f}"
