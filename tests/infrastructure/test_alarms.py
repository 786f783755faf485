"""The alarms and the dashboard."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import pages

Json = dict[str, Any]

NAMESPACE = "A2AServerless"

ALARMS = {
    "DeadLetterAlarm": "ApproximateNumberOfMessagesVisible",
    "FailedDeadLetterAlarm": "DeadLetters",
    "UndecodableAlarm": "ApproximateNumberOfMessagesVisible",
    "PushGivenUpAlarm": "PushGivenUp",
    "LateStartsAlarm": "LateStarts",
    "PushLagAlarm": "IteratorAge",
    "PushErrorsAlarm": "PushErrors",
    "StuckTasksAlarm": "StuckTurns",
    "TurnsGivenUpAlarm": "TurnsGivenUp",
    "OldestTurnAlarm": "AgeOfLostTurns",
    "SendFailuresAlarm": "SendFailures",
    "SweepFailuresAlarm": "SweepFailures",
    "ServerErrorsAlarm": "5XXError",
    "FunctionErrorsAlarm": "Errors",
    "ThrottlesAlarm": "Throttles",
    "TableLimitAlarm": "WriteThrottleEvents",
    "FailedTasksAlarm": "TasksEnded",
    "AttemptsUsedUpAlarm": "Callers",
    "AgentNotLoadedAlarm": "AgentNotLoaded",
}

CLIENTS_CALL = {"ApiFunction", "StreamFunction"}
"""How many requests these get at once is the clients' choice."""


def properties(transformed: Json, name: str) -> Json:
    """The properties of a resource."""
    found: Json = transformed[name]["Properties"]
    return found


def watched(alarm: Json) -> list[Json]:
    """The metrics of an alarm, with namespace, name and dimensions."""
    if "Metrics" not in alarm:
        return [alarm]
    return [m["MetricStat"]["Metric"] for m in alarm["Metrics"] if "MetricStat" in m]


Dimensions = frozenset[str]


@pytest.fixture(scope="module")
def emitted(project: Path) -> Mapping[str, set[Dimensions]]:
    """The metrics that the code emits by itself, each with the dimensions that it comes with."""
    found: defaultdict[str, set[Dimensions]] = defaultdict(set)
    for path in (project / "layers/runtime/a2a_serverless").rglob("*.py"):
        for name, dimensions in counted_in(path):
            found[name].add(dimensions)
    return found


def counted_in(path: Path) -> Iterator[tuple[str, Dimensions]]:
    """Every call of `metrics.count`, `metrics.time` and `metrics.caller`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="metrics"), attr="count" | "time"),
                args=[ast.Constant(value=str(name)), *_],
                keywords=keywords,
            ):
                yield name, frozenset({"service", *(str(keyword.arg) for keyword in keywords)})
            case ast.Call(func=ast.Attribute(value=ast.Name(id="metrics"), attr="caller")):
                yield "Callers", frozenset({"service", "whose"})


@pytest.fixture
def dashboard(transformed: Json) -> Json:
    """The dashboard as CloudWatch gets it, references by their names."""
    body = properties(transformed, "Dashboard")["DashboardBody"]["Fn::Sub"]
    parsed: Json = json.loads(re.sub(r"\$\{([^}]+)\}", r"\1", body))
    return parsed


def test_every_alarm_is_known(transformed: Json) -> None:
    """The alarms are those that docs/operate explains."""
    alarms = {n for n, r in transformed.items() if r["Type"] == "AWS::CloudWatch::Alarm"}
    assert alarms == ALARMS.keys()


def test_alarms_are_explained() -> None:
    """Each alarm, and no other, has a meaning and a first action in docs/operate."""
    page = pages.part("operate")
    rows = re.findall(r"^\| `(\w+Alarm)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(ALARMS)
    assert set(re.findall(r"`(\w+Alarm)`", page)) == ALARMS.keys()
    assert all(meaning.strip() and action.strip() for _, meaning, action in rows)


@pytest.mark.parametrize(("alarm", "metric"), ALARMS.items())
def test_alarms_watch_their_metric(transformed: Json, alarm: str, metric: str) -> None:
    """Each alarm watches what it is named for, calls the topic, and is silent without data."""
    found = properties(transformed, alarm)
    assert metric in {each["MetricName"] for each in watched(found)}
    for actions in ("AlarmActions", "OKActions"):  # it is told, too, when it is over
        assert found[actions]["Fn::If"][:2] == ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}]]
    assert found["TreatMissingData"] == "notBreaching"


@pytest.mark.parametrize(
    ("alarm", "left_out"), [("FunctionErrorsAlarm", set[str]()), ("ThrottlesAlarm", CLIENTS_CALL)]
)
def test_alarms_watch_every_function(transformed: Json, alarm: str, left_out: set[str]) -> None:
    """No function fails unseen, and none is throttled unseen but by its own callers' crowd."""
    functions = {n for n, r in transformed.items() if r["Type"] == "AWS::Lambda::Function"}
    seen = {
        dimension["Value"]["Ref"]
        for metric in watched(properties(transformed, alarm))
        for dimension in metric.get("Dimensions", [])
        if dimension["Name"] == "FunctionName"
    }
    assert seen == functions - left_out


def test_alarms_read_no_more_than_cloudwatch_allows(transformed: Json) -> None:
    """An alarm over an expression reads ten metrics at most, and one expression is its value."""
    for name in ALARMS:
        queries = properties(transformed, name).get("Metrics", [])
        assert len(watched(properties(transformed, name))) <= 10, name
        assert sum(query.get("ReturnData", True) for query in queries) == bool(queries), name


def test_alarms_name_all_dimensions(
    transformed: Json, emitted: Mapping[str, set[Dimensions]]
) -> None:
    """CloudWatch does not add up over dimensions: an alarm that leaves one out sees nothing."""
    own = [
        metric
        for name in ALARMS
        for metric in watched(properties(transformed, name))
        if metric["Namespace"] == NAMESPACE
    ]
    assert len(own) >= 5
    for metric in own:
        named = frozenset(dimension["Name"] for dimension in metric.get("Dimensions", []))
        assert emitted[metric["MetricName"]] == {named}, metric["MetricName"]


def test_the_apis_metrics_have_its_name(transformed: Json, dashboard: Json) -> None:
    """API Gateway counts by the API's name: alarm and graphs look for the name that it has."""
    name = properties(transformed, "RestApi")["Name"]
    dimensions = [
        metric["Dimensions"]
        for metric in watched(properties(transformed, "ServerErrorsAlarm"))
        if metric["Namespace"] == "AWS/ApiGateway"
    ]
    graphs = [
        row
        for widget in dashboard["widgets"]
        for row in widget["properties"]["metrics"]
        if row[0] == "AWS/ApiGateway"
    ]
    assert dimensions == [[{"Name": "ApiName", "Value": name}]] * 2
    assert name == {"Ref": "AWS::StackName"}
    assert graphs == [
        ["AWS/ApiGateway", metric, "ApiName", "AWS::StackName"]
        for metric in ("Count", "4XXError", "5XXError")
    ]


def test_alarms_and_dashboard_show_what_is_emitted(
    transformed: Json, dashboard: Json, emitted: Mapping[str, set[Dimensions]]
) -> None:
    """Each metric of ours that an alarm or a graph reads is emitted by the code."""
    alarms = {
        metric["MetricName"]
        for name in ALARMS
        for metric in watched(properties(transformed, name))
        if metric["Namespace"] == NAMESPACE
    }
    graphs = set()
    for widget in dashboard["widgets"]:
        for row in widget["properties"]["metrics"]:
            if row[0] == NAMESPACE:
                graphs.add(row[1])
            elif isinstance(row[0], dict):
                graphs |= set(re.findall(r'MetricName="(\w+)"', row[0]["expression"]))
    assert alarms
    assert alarms | graphs <= emitted.keys()


def test_the_dashboard_shows_what_is_counted(
    dashboard: Json, emitted: Mapping[str, set[Dimensions]]
) -> None:
    """The dashboard shows every metric that the code emits."""
    text = json.dumps(dashboard)
    assert {name for name in emitted if f'"{name}' not in text} == set()


HEALTH = (
    ({"TasksEnded"}, {"Sum"}),
    ({"TimeQueued", "TimeRunning", "TimeToFirstChunk"}, {"p50", "p99"}),
    ({"TasksFailed", "ForcedCancels"}, {"Sum"}),
    ({"InputTokens", "OutputTokens"}, {"Sum"}),
    ({"ModelCost"}, {"Sum"}),
)
"""What the dashboard shows first, by its graphs: the metrics, and what of them."""


def test_the_dashboard_begins_with_the_agents_health(dashboard: Json) -> None:
    """How tasks end, times, failures, tokens, money; whatever the runtime does stands below."""
    placed = [(w["y"], w["x"], w["properties"]) for w in dashboard["widgets"]]
    graphs = [properties for _, _, properties in sorted(placed, key=lambda one: one[:2])]
    assert [shown(graph) for graph in graphs[: len(HEALTH)]] == list(HEALTH)
    last_of_health = placed[len(HEALTH) - 1][0]
    assert all(y > last_of_health for y, _, graph in placed if shown(graph)[0] & {"Attempts"})
    assert len({(y, x) for y, x, _ in placed}) == len(placed)
    assert all(
        x + w["width"] <= 24 for w, (_, x, _) in zip(dashboard["widgets"], placed, strict=True)
    )


def shown(graph: Json) -> tuple[set[str], set[str]]:
    """The metrics of ours that a graph shows, and their statistics."""
    names, statistics = set(), set()
    for row in graph["metrics"]:
        if isinstance(row[0], dict):
            names |= set(re.findall(r'MetricName="(\w+)"', row[0]["expression"]))
            statistics |= set(re.findall(r"'(\w+)', \d+\)", row[0]["expression"]))
        else:
            names.add(row[1])
            statistics.add(row[-1].get("stat") if isinstance(row[-1], dict) else graph["stat"])
    return names, statistics


def test_metrics_are_explained(emitted: Mapping[str, set[Dimensions]]) -> None:
    """Every metric that the code emits is named in docs/operate."""
    text = pages.part("operate")
    assert {name for name in emitted if f"`{name}`" not in text} == set()
