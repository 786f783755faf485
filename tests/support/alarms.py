"""CloudWatch on this machine: metrics by the clock of a test, and template.yaml's alarms over them.

Expressions mean what AWS documents: a period without data is missing, SUM and MAX leave it out, and
FILL replaces it. What arithmetic makes of one that is missing, AWS's pages do not say, and users
report both: that it is missing too, and that it counts as 0. An alarm must be the same by both.
"""

from __future__ import annotations

import ast
import functools
import json
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics
from tests.support.template import Template, read

Json = dict[str, Any]
Value = float | None
"""None: missing."""
READINGS: Final[tuple[Value, ...]] = (None, 0.0)
"""What arithmetic takes for a value that is missing."""

STACK: Final = "agent"
NAMESPACE: Final = "A2AServerless"
MINUTE_MS: Final = 60_000

_RESOURCES: Final = read()["Resources"]
_NAMES: Final = {
    "AWS::StackName": STACK,
    "AWS::Region": "us-east-1",
    **{name: name for name in _RESOURCES},
    **{f"{name}.QueueName": name for name in _RESOURCES},
}

_STATISTICS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "Sum": sum,
    "Minimum": min,
    "Maximum": max,
    "SampleCount": len,
}

_OPERATORS: Final[Mapping[type, Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.Eq: operator.eq,
}

Key = tuple[str, str, frozenset[tuple[str, str]]]


@dataclass
class CloudWatch:
    """All values of all metrics, each with its time."""

    clock: Clock
    points: defaultdict[Key, list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _known: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    """Statistics of the points as they are: alarms look at the same minutes again and again."""

    def put(self, namespace: str, name: str, value: float, **dimensions: str) -> None:
        """Take a value of a metric, as of now."""
        key = (namespace, name, frozenset(dimensions.items()))
        self.points[key].append((self.clock.now_ms(), float(value)))
        self._known.clear()

    def take(self, line: str) -> None:
        """Take a line of the embedded metric format, as of now."""
        parsed = json.loads(line)
        (directive,) = parsed["_aws"]["CloudWatchMetrics"]
        (names,) = directive["Dimensions"]
        dimensions = {name: parsed[name] for name in names}
        for metric in directive["Metrics"]:
            values = parsed[metric["Name"]]
            for value in values if isinstance(values, list) else [values]:
                self.put(directive["Namespace"], metric["Name"], value, **dimensions)

    @contextmanager
    def emitted(self) -> Iterator[None]:
        """Take what the runtime emits in the block, where alarms need two callers."""
        line = metrics.Emf(NAMESPACE, service=STACK, write=self.take)
        metrics.start(line, needs_others=True)
        try:
            yield
            metrics.flush()
        finally:
            metrics.stop()

    def of_one(self) -> CloudWatch:
        """Return the same where one caller suffices for an alarm."""
        points = self.points.copy()
        for key, values in self.points.items():
            if key[1] == "Callers":
                points[key] = [(at, value + metrics.ALONE) for at, value in values]
        return CloudWatch(self.clock, points)

    def statistic(self, metric: Json, name: str, begin_ms: int, end_ms: int) -> Value:
        """The statistic of a metric over the values with a time in `begin_ms < t <= end_ms`."""
        key = key_of(metric)
        asked = (key, name, begin_ms, end_ms)
        if key not in self.points:
            return None
        if asked not in self._known:
            values = [value for at, value in self.points[key] if begin_ms < at <= end_ms]
            self._known[asked] = _STATISTICS[name](values) if values else None
        return self._known[asked]


def key_of(metric: Json) -> Key:
    """A metric of an alarm among those of CloudWatch."""
    given = metric.get("Dimensions", [])
    dimensions = frozenset((each["Name"], each["Value"]) for each in given)
    return metric["Namespace"], metric["MetricName"], dimensions


class Alarm:
    """One alarm of the template."""

    def __init__(self, name: str, properties: Json) -> None:
        self.name = name
        self.properties = properties
        assert properties["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
        assert properties["TreatMissingData"] == "notBreaching"

    def has_data(self, seen: CloudWatch) -> bool:
        """Whether there is a value of one of its metrics: if not, it is the same at all times."""
        every = self.properties.get("Metrics", ())
        queries = [it["MetricStat"] for it in every if "MetricStat" in it]
        metrics = [it["Metric"] for it in queries] or [self.properties]
        return any(key_of(metric) in seen.points for metric in metrics)

    def rings(self, seen: CloudWatch, now_ms: int, missing: Value = None) -> bool:
        """Whether the alarm is in the state ALARM when it is evaluated at `now_ms`.

        `missing` is one of READINGS.
        """
        length, wanted = self.properties["EvaluationPeriods"], self.properties
        values = [self._value(seen, now_ms, back, missing) for back in range(length)]
        breaching = [it for it in values if it is not None and it >= float(wanted["Threshold"])]
        return len(breaching) >= int(wanted.get("DatapointsToAlarm") or length)

    def _value(self, seen: CloudWatch, now_ms: int, back: int, missing: Value) -> Value:
        def of(metric: Json, statistic: str, period: Any) -> Value:
            end_ms = now_ms - back * int(period) * 1000
            return seen.statistic(metric, statistic, end_ms - int(period) * 1000, end_ms)

        own = self.properties
        if "Metrics" not in own:
            return of(own, own["Statistic"], own["Period"])
        known, expression = dict[str, Value](), ""
        for query in own["Metrics"]:
            if "Expression" in query:
                expression = query["Expression"]
            else:
                asked = query["MetricStat"]
                known[query["Id"]] = of(asked["Metric"], asked["Stat"], asked["Period"])
        return evaluate(_parsed(expression), known, missing)


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression.replace(" AND ", " and "), mode="eval").body


def evaluate(node: ast.expr, known: Mapping[str, Value], missing: Value = None) -> Value:
    """The value of a metric math expression; an expression that is not known here is an error."""

    def of(part: ast.expr) -> Value:
        return evaluate(part, known, missing)

    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return known[name]
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ):
            return _calculated(op, *(missing if it is None else it for it in (of(left), of(right))))
        case ast.BoolOp(op=ast.And(), values=parts):
            values = [missing if it is None else it for it in map(of, parts)]
            return None if None in values else float(all(values))
        case ast.Call(func=ast.Name(id="SUM" | "MAX" as name), args=[ast.List(elts=parts)]):
            values = [of(part) for part in parts]
            present = [value for value in values if value is not None]
            return _STATISTICS[{"SUM": "Sum", "MAX": "Maximum"}[name]](present) if present else None
        case ast.Call(func=ast.Name(id="FILL"), args=[part, other]):
            value = of(part)
            return of(other) if value is None else value
        case ast.Call(func=ast.Name(id="IF"), args=[condition, then, otherwise]):
            chosen = of(condition)
            return None if chosen is None else of(then if chosen else otherwise)
    raise NotImplementedError(ast.unparse(node))


def _calculated(op: ast.AST, left: Value, right: Value) -> Value:
    if left is None or right is None or (isinstance(op, ast.Div) and right == 0):
        return None
    return float(_OPERATORS[type(op)](left, right))


def alarms_of(resources: Mapping[str, Json], **parameters: str) -> list[Alarm]:
    """The alarms among the template's resources, with these parameters, for the stack `STACK`."""
    names = [n for n, it in resources.items() if it["Type"] == "AWS::CloudWatch::Alarm"]
    return _alarms(tuple(names), tuple(parameters.items()))


@functools.cache
def _alarms(names: Sequence[str], parameters: Sequence[tuple[str, str]]) -> list[Alarm]:
    template = Template(parameters=dict(parameters))
    return [Alarm(name, template.properties(name, _NAMES)) for name in names]


def rung(alarms: list[Alarm], seen: CloudWatch, *, since_ms: int, again: bool = False) -> set[str]:
    """The names of the alarms that rang between `since_ms` and the last value.

    Each has to ring alike by both readings of what is missing, and once: a cause that goes on, and
    an alarm that is over and rings again, would be told twice. `again` is for causes that come by
    chance, and may come again.
    """
    last_ms = max((at for points in seen.points.values() for at, _ in points), default=since_ms)
    minutes = range(since_ms, last_ms + 2 * MINUTE_MS, MINUTE_MS)
    found = set()
    for alarm in alarms:
        times = minutes if alarm.has_data(seen) else minutes[:1]
        readings = [[alarm.rings(seen, at, missing) for at in times] for missing in READINGS]
        told = [sum(now > before for before, now in pairwise([False, *it])) for it in readings]
        assert told[0] == told[1], f"{alarm.name} rings {told} times by the readings of no data"
        assert again or told[0] <= 1, f"{alarm.name} rings {told[0]} times"
        found |= {alarm.name} if told[0] else set()
    return found
