"""The bill of `benchmarks.cost`: what is no multiplication."""

from __future__ import annotations

import re

from a2a_serverless_tools.operate.prices import SECONDS_OF_MONTH
from benchmarks.cost import at_rest, chosen, document
from tests.support import pages
from tests.unit.test_load_page import rows

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
