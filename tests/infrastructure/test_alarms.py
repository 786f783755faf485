"""The alarms and the dashboard."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import pages

Json = dict[str, Any]

NAMESPACE = "A2AServerless"


def properties(transformed: Json, name: str) -> Json:
    """The properties of a resource."""
    found: Json = transformed[name]["Properties"]
    return found


def watched(alarm: Json) -> list[Json]:
    """The metrics of an alarm, with namespace, name and dimensions."""
    if "Metrics" not in alarm:
        return [alarm]
    return [m["MetricStat"]["Metric"] for m in alarm["Metrics"] if "MetricStat" in m]


@pytest.fixture(scope="module")
def emitted(project: Path) -> set[str]:
    """The metrics that the code emits by itself."""
    paths = (project / "layers/runtime/a2a_serverless").rglob("*.py")
    return {name for path in paths for name in counted_in(path)}


def counted_in(path: Path) -> Iterator[str]:
    """Every call of `metrics.count`, `metrics.time` and `metrics.caller`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="metrics"), attr="count" | "time"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="metrics"), attr="caller")):
                yield "Callers"


@pytest.fixture
def dashboard(transformed: Json) -> Json:
    """The dashboard as CloudWatch gets it, references by their names."""
    body = properties(transformed, "Dashboard")["DashboardBody"]["Fn::Sub"]
    parsed: Json = json.loads(re.sub(r"\$\{([^}]+)\}", r"\1", body))
    return parsed


def alarms(transformed: Json) -> set[str]:
    return {n for n, it in transformed.items() if it["Type"] == "AWS::CloudWatch::Alarm"}


def test_alarms_are_explained(transformed: Json) -> None:
    """Each alarm, and no other, has a meaning and a first action in docs/operate."""
    page = pages.part("operate")
    rows = re.findall(r"^\| `(\w+Alarm)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(alarms(transformed))
    assert set(re.findall(r"`(\w+Alarm)`", page)) == alarms(transformed)
    assert all(meaning.strip() and action.strip() for _, meaning, action in rows)


def test_alarms_call_the_topic(transformed: Json) -> None:
    """Whoever listens is told when an alarm begins, and when it is over."""
    for name in alarms(transformed):
        found = properties(transformed, name)
        for actions in ("AlarmActions", "OKActions"):
            assert found[actions]["Fn::If"][:2] == ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}]]


def test_alarms_read_no_more_than_cloudwatch_allows(transformed: Json) -> None:
    """An alarm over an expression reads ten metrics at most, and one expression is its value."""
    for name in alarms(transformed):
        queries = properties(transformed, name).get("Metrics", [])
        assert len(watched(properties(transformed, name))) <= 10, name
        assert sum(query.get("ReturnData", True) for query in queries) == bool(queries), name


def test_the_apis_metrics_have_its_name(dashboard: Json) -> None:
    """API Gateway counts by the API's name: the graphs look for the name that it has."""
    graphs = [
        row
        for widget in dashboard["widgets"]
        for row in widget["properties"]["metrics"]
        if row[0] == "AWS/ApiGateway"
    ]
    assert graphs == [
        ["AWS/ApiGateway", metric, "ApiName", "AWS::StackName"]
        for metric in ("Count", "4XXError", "5XXError")
    ]


def test_the_dashboard_shows_what_is_emitted(dashboard: Json, emitted: set[str]) -> None:
    """Each metric of ours that a graph reads is emitted by the code."""
    graphs = set[str]()
    for widget in dashboard["widgets"]:
        for row in widget["properties"]["metrics"]:
            if row[0] == NAMESPACE:
                graphs.add(row[1])
            elif isinstance(row[0], dict):
                graphs |= set(re.findall(r'MetricName="(\w+)"', row[0]["expression"]))
    assert graphs
    assert graphs <= emitted


def test_what_is_counted_is_shown_and_explained(dashboard: Json, emitted: set[str]) -> None:
    """The dashboard shows every metric that the code emits, and docs/operate names it."""
    text, page = json.dumps(dashboard), pages.part("operate")
    assert {name for name in emitted if f'"{name}' not in text or f"`{name}`" not in page} == set()
