"""The price of each metric, and a collector's configuration, as the pages of docs/operate say."""

from __future__ import annotations

import ast
import functools
import re
from typing import get_args

import pytest
import yaml

from a2a_serverless.http.app import _HTTP_ERRORS, _OTHER_HTTP_ERROR
from a2a_serverless.http.tokens import _REASONS
from a2a_serverless.tasks.head import TERMINAL, FailedBy, plain_state
from a2a_serverless.worker.sweeper import Settled
from a2a_serverless_tools.operate.prices import METRIC_MONTH
from tests.support import pages
from tests.unit.test_load_page import rows
from website import api, observed

REFUSING = {"log_refusal", "refusal", "RequestRefusedError", "_invalid"}
"""What the first argument of a call of these is: the reason of a refusal."""


def first_words(*functions: str) -> set[str]:
    """The texts with which the runtime calls functions of these names first."""
    return {
        node.args[0].value
        for path in api.modules().values()
        for node in ast.walk(api.tree(path))
        if isinstance(node, ast.Call) and node.args
        if getattr(node.func, "id", getattr(node.func, "attr", "")) in functions
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }


def texts_of(keyword: str) -> set[str]:
    """The texts that metrics are given as this dimension."""
    return {
        each.value.value
        for path in api.modules().values()
        for node in ast.walk(api.tree(path))
        if isinstance(node, ast.Call)
        for each in node.keywords
        if each.arg == keyword and isinstance(each.value, ast.Constant)
        if isinstance(each.value.value, str)
    }


@functools.cache
def values() -> dict[str, set[str]]:
    """All values of the dimension of each metric that has one."""
    refusals = first_words(*REFUSING) | {*_REASONS.values(), _OTHER_HTTP_ERROR[1]}
    refusals |= {reason for _, reason, _ in _HTTP_ERRORS.values()}
    refusals |= observed.meanings("answers").keys() - {"Internal"}
    refusals = {each for each in refusals if re.fullmatch(r"([A-Z]+[a-z]*)+", each)}
    return {
        "Callers": texts_of("whose"),
        "DeadLetters": set(get_args(Settled)),
        "RequestsRefused": refusals,
        "TasksEnded": {plain_state(state) for state in TERMINAL},
        "TasksFailed": set(FailedBy),
    }


@pytest.mark.long
def test_each_metric_has_its_price() -> None:
    """The page names each metric, how many values its dimension has, and what CloudWatch takes."""
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


@pytest.mark.long
def test_no_metric_has_more_dimensions_than_cloudwatch_takes() -> None:
    """A metric has at most one dimension beside the service; CloudWatch takes thirty."""
    assert max(len(dimensions) for _, dimensions in observed.metrics().values()) == 1


def test_each_reason_of_a_failure_is_explained() -> None:
    """The reference says what each value of `reason` means."""
    told = observed.meanings("metrics")["TasksFailed"]
    assert [by for by in FailedBy if f"`{by}`" not in told] == []


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
