"""What the pages `load`, `cost` and `watch-elsewhere` say is computed again, from its sources."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection
from typing import get_args

import pytest
import yaml

from a2a_serverless.http.app import _HTTP_ERRORS, _OTHER_HTTP_ERROR
from a2a_serverless.http.tokens import _REASONS
from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import SHARDS
from a2a_serverless.tasks.head import TERMINAL, FailedBy, plain_state
from a2a_serverless.worker.sweeper import Settled
from a2a_serverless_tools.operate.prices import METRIC_MONTH, SECONDS_OF_MONTH
from benchmarks.cost import OWN_S, STREAM_S, THINK_S, at_rest, chosen, document
from tests.support import pages
from tests.support.template import Template, refused
from website import api, observed

GIVEN = re.compile(r"`(\w+)` ([\w,]+)")
HEADS = ("one task", "---", "|---")


def rows(title: str, page: str = "*") -> dict[str, list[str]]:
    """The rows of the one table whose first cell is `title`, by their first cells."""
    table = pages.table(title, page)
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: [cell.strip() for cell in cells] for name, *cells in lines}


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def default(name: str) -> float:
    """The default of a parameter of the template, or of a setting."""
    if field := Settings.model_fields.get(name.removeprefix("A2A_").lower()):
        return float(field.default)
    return float(document()["Parameters"][name]["Default"])


def busiest(cost: dict[str, list[float]]) -> list[float]:
    """The requests of a task to the method that gets most: its send, or all others, which look."""
    return [max(1.0, each - 1) for each in cost["requests to API Gateway"]]


def ceilings() -> dict[str, list[float]]:
    """What each row of the page has to say, by a word of it."""
    table = rows("one task")
    cost = {name: numbers(cells) for name, cells in table.items() if name not in HEADS}
    turns = [0.0, THINK_S, STREAM_S]

    def over(most: float, used: str) -> list[float]:
        return [most / each for each in cost[used]]

    return {
        "WorkerConcurrency": [default("WorkerConcurrency") / (t + OWN_S["worker"]) for t in turns],
        "environments": over(1000, "seconds of Lambda environments"),
        "ThrottleRate": [default("ThrottleRate") / each for each in busiest(cost)],
        "API Gateway": over(10_000, "requests to API Gateway"),
        "fresh table": over(4_000, "write units"),
        "table's quota": over(40_000, "write units"),
        "what is due": over(SHARDS * 1000, "- of them in the index of what is due"),
        "SQS's quota": [120_000 / (turn + OWN_S["worker"]) for turn in turns],
        "caller's list": over(SHARDS * 1000, "- of them in the index of the caller's tasks"),
    }


@pytest.mark.parametrize(("word", "expected"), ceilings().items())
def test_the_ceilings_follow_from_the_counts(word: str, expected: list[float]) -> None:
    """Each number of the page is a quota or a default, divided by what one task uses."""
    told = [cells for name, cells in rows("tasks a second until").items() if word in name]
    assert len(told) == 1
    assert numbers(told[0]) == [pytest.approx(each, rel=0.04) for each in expected]


def test_streams_and_webhooks_follow_from_their_limits() -> None:
    """A stream's place is taken for its time, a webhook's for a call's and the receiver's."""
    for name in ("A2A_STREAMS_IN_ALL", "A2A_STREAMS_PER_CALLER"):
        (told,) = [it for word, it in rows("tasks a second until").items() if name in word]
        assert (told[:2], float(told[2])) == (["-", "-"], default(name) / STREAM_S)
    text = pages.text("load")
    a_second = default("PushConcurrency") / (OWN_S["push"] + 0.2)
    assert (
        f"are notified {a_second:g} times a second, one caller's receivers {a_second / 5:g}" in text
    )


def setting(text: str, name: str) -> float:
    """The value of a parameter in an example's settings, else its default."""
    given = re.search(rf"`{name}` ([\d,]+)", text)
    return float(given[1].replace(",", "")) if given else default(name)


@pytest.mark.long
def test_the_settings_of_an_example_carry_it() -> None:
    """Workers, requests to a method and write units of a fresh table suffice for each example."""
    table = rows("one task")
    cost = {name: numbers(cells) for name, cells in table.items() if name not in HEADS}
    looks, units = busiest(cost)[1], cost["write units"][1]
    examples = rows("a 30 s agent")
    settings = [(name, cells[0], cells[1]) for name, cells in examples.items() if "second" in name]
    assert len(settings) == 4
    for name, turns, text in settings:
        rate = float(name.split()[0])
        given = {it[1]: it[2].replace(",", "") for it in GIVEN.finditer(text)}
        known = {it: value for it, value in given.items() if it in document()["Parameters"]}
        assert refused(document(), known) == Template(parameters=known).broken_rules() == []
        assert float(turns.replace(",", "")) == rate * THINK_S
        assert setting(text, "ThrottleRate") >= rate * looks
        assert max(4000, setting(text, "WarmWriteUnits")) >= 1.2 * rate * units
        if workers := re.search(r"(\d+) workers of `fargate.yaml`", text):
            assert float(workers[1]) * 64 * 0.7 >= rate * THINK_S
            assert setting(text, "MostWorkers") >= float(workers[1])
        else:
            places = setting(text, "WorkerConcurrency") * setting(text, "WorkerTurns")
            assert places >= rate * THINK_S


def test_the_months_follow_from_the_prices() -> None:
    """An example's month is its tasks at the price of a million in the page `cost`."""
    prices = rows("a million tasks, in dollars", "cost")["**all**"]
    text = pages.text("cost-of-waiting")
    shared = re.search(
        r"N=25.*?\n.*?\| \*\*all\*\* \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| ([\d.]+)", text, re.DOTALL
    )
    assert shared is not None
    month = 30 * 86_400 / 1_000_000
    each = [float(prices[1]), float(shared[1]), 10 * float(shared[1]), 100 * float(shared[2])]
    told = [cells[2] for name, cells in rows("a 30 s agent").items() if "second" in name]
    assert numbers(told) == [pytest.approx(month * one, rel=0.01) for one in each]


PRICED_AT_REST = """
    CloudWatch::Alarm CloudWatch::Dashboard Logs::LogGroup SecretsManager::Secret
    Serverless::Function
"""
"""Of functions: the sweeper's rounds, and event sources."""
FREE_AT_REST = """
    ApiGateway::BasePathMapping ApiGateway::DomainName DynamoDB::Table IAM::ManagedPolicy IAM::Role
    Lambda::Permission Route53::RecordSet S3::Bucket S3::BucketPolicy SQS::Queue Serverless::Api
    Serverless::LayerVersion WAFv2::WebACLAssociation
"""
"""A table costs what is stored; zone and web ACL are their owner's."""


def test_every_kind_of_resource_is_known_at_rest() -> None:
    """A new kind of resource has a price in the table of a month without tasks, or none at rest."""
    kinds = {resource["Type"] for resource in document()["Resources"].values()}
    assert kinds == {f"AWS::{kind}" for kind in (PRICED_AT_REST + FREE_AT_REST).split()}


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
    more = {f"with {it}": [f"{dollars:.2f}", what] for it, dollars, what in chosen(int(metrics[1]))}
    parts = {name: cells for name, cells in told.items() if len(cells) == 2 and cells[-1]}
    del parts["a month without tasks, in dollars"]
    assert {name: it for name, it in parts.items() if name != "**all**"} == expected | more
    assert told["**all**"][0] == f"**{all_of_it:.2f}**"
    readme = (pages.DOCS.parent / "README.md").read_text(encoding="utf-8")
    echo = float(rows("a million tasks, in dollars", "cost")["**all**"][0])
    assert f"${echo:.0f}, a month without tasks ${all_of_it:.0f}." in readme
    assert rows("load")["a month without tasks"][-1] == f"{all_of_it:.0f}"


REFUSING = {"log_refusal", "refusal", "RequestRefusedError", "_invalid"}
"""What the first argument of a call of these is: the reason of a refusal."""


def texts_given(keyword: str = "", functions: Collection[str] = ()) -> set[str]:
    """The texts that calls of the runtime give as a keyword, or functions of these names first."""
    calls = [
        node
        for path in api.modules().values()
        for node in ast.walk(api.tree(path))
        if isinstance(node, ast.Call)
    ]
    given = [each.value for call in calls for each in call.keywords if each.arg == keyword]
    for call in calls:
        if getattr(call.func, "id", getattr(call.func, "attr", "")) in functions:
            given += call.args[:1]
    constants = [each.value for each in given if isinstance(each, ast.Constant)]
    return {text for text in constants if isinstance(text, str)}


@functools.cache
def values() -> dict[str, set[str]]:
    """All values of the dimension of each metric that has one."""
    refusals = texts_given(functions=REFUSING) | {*_REASONS.values(), _OTHER_HTTP_ERROR[1]}
    refusals |= {reason for _, reason, _ in _HTTP_ERRORS.values()}
    refusals |= observed.meanings("answers").keys() - {"Internal"}
    refusals = {each for each in refusals if re.fullmatch(r"([A-Z]+[a-z]*)+", each)}
    return {
        "Callers": texts_given("whose"),
        "DeadLetters": set(get_args(Settled)),
        "RequestsRefused": refusals,
        "TasksEnded": {plain_state(state) for state in TERMINAL},
        "TasksFailed": set(FailedBy),
    }


@pytest.mark.long
def test_each_metric_has_its_price() -> None:
    """The page names each, its one dimension's values and price; the reference explains them."""
    table = rows("a month of metrics", "cost-drivers")
    told = {name.strip("`"): cells for name, cells in table.items() if name.startswith("`")}
    alone = {name for name, (_, dimensions) in observed.metrics().items() if not dimensions}
    (each_other,) = (name for name in told if name not in values())
    assert set(re.findall(r"\w+", each_other)) == alone
    expected = {name: len(found) for name, found in values().items()}
    assert expected.keys() == observed.metrics().keys() - alone
    for name, count in expected.items():
        assert told[name][1:] == [str(count), f"{count * METRIC_MONTH:.2f}"], name
    assert told[each_other][1:] == [str(len(alone)), f"{len(alone) * METRIC_MONTH:.2f}"]
    most = sum(expected.values()) + len(alone)
    assert table["**all**"][1:] == [str(most), f"**{most * METRIC_MONTH:.2f}**"]
    assert max(len(dimensions) for _, dimensions in observed.metrics().values()) == 1
    explained = observed.meanings("metrics")["TasksFailed"]
    assert [by for by in FailedBy if f"`{by}`" not in explained] == []


def test_the_collectors_configuration_fits_together() -> None:
    """Its pipeline has what it defines, and its receiver the port that the worker is told."""
    page = (pages.DOCS / "operate" / "watch-elsewhere.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    made = yaml.safe_load(block)
    (pipeline,) = made["service"]["pipelines"].items()
    assert pipeline[0] == "metrics"
    for part in ("receivers", "processors", "exporters"):
        assert pipeline[1][part] == list(made[part])
    port = made["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:{port}\n" in page
    assert str(made["exporters"]["prometheus"]["endpoint"]).rpartition(":")[2] in page


@pytest.mark.long
def test_the_queries_name_metrics_that_there_are() -> None:
    """Each PromQL query of the page reads metrics of the code, with dimensions that they have."""
    page = (pages.DOCS / "operate" / "watch-elsewhere.md").read_text(encoding="utf-8")
    named = re.findall(r"\b([A-Z]\w+?)(?:_milliseconds_bucket|_total)\b", page)
    assert len(named) >= 5
    assert set(named) <= observed.metrics().keys()
    for dimension, name in re.findall(r"sum by \((\w+)\) \(increase\((\w+)_total", page):
        assert observed.metrics()[name][1] == {dimension}
