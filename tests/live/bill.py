"""What AWS has counted during the run: the units of the bill."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from tests.live.findings import Check, Figures, require
from tests.live.stack import FUNCTIONS, Stack
from tests.live.subject import Subject

LAG_S: Final = 600.0
"""How long CloudWatch may take to have counted the run."""
MINUTE: Final = 60


async def counted(subject: Subject) -> Figures:
    """Read the counters of the run's period, once they have all requests of the run."""
    account, stack = subject.behind_gateway()
    start = dt.datetime.fromtimestamp(subject.began_ms // 1000 // MINUTE * MINUTE, dt.UTC)
    sent = subject.requests
    wanted = queries(stack)
    seen: dict[str, float] = {}

    async def look() -> bool | None:
        now = dt.datetime.fromtimestamp(subject.clock.now_ms() / 1000, dt.UTC)
        answer = await account.call(
            "cloudwatch",
            "get_metric_data",
            MetricDataQueries=wanted,
            StartTime=start,
            EndTime=now + dt.timedelta(minutes=1),
        )
        seen.update({one["Label"]: sum(one["Values"]) for one in answer["MetricDataResults"]})
        return seen.get("requests", 0) >= sent or None

    try:
        await subject.until("the count of the requests", look, within_s=LAG_S, every_s=15)
    finally:
        figures = {"sent by this program": sent, **seen}
    require(seen.get("worker invocations"), "no invocation of the worker was counted", **figures)
    require(seen.get("table writes"), "no write unit was counted", **figures)
    return figures


def queries(stack: Stack) -> list[dict[str, Any]]:
    """The counters, each as a query whose label is its name in the report."""
    api = {"ApiName": stack.name}
    table = {"TableName": stack.resources["TaskTable"]}
    metrics = [
        ("requests", "AWS/ApiGateway", "Count", api),
        ("table reads", "AWS/DynamoDB", "ConsumedReadCapacityUnits", table),
        ("table writes", "AWS/DynamoDB", "ConsumedWriteCapacityUnits", table),
    ]
    for index in ("by-scope", "by-context", "by-due", "by-id"):
        metrics += [
            (
                f"{index} writes",
                "AWS/DynamoDB",
                "ConsumedWriteCapacityUnits",
                {**table, "GlobalSecondaryIndexName": index},
            )
        ]
    for logical in FUNCTIONS:
        name = logical.removesuffix("Function").lower()
        function = {"FunctionName": stack.resources[logical]}
        metrics += [
            (f"{name} invocations", "AWS/Lambda", "Invocations", function),
            (f"{name} milliseconds", "AWS/Lambda", "Duration", function),
        ]
    queue = {"QueueName": stack.resources["OperationsQueue"].rpartition("/")[2]}
    metrics += [
        ("operations sent", "AWS/SQS", "NumberOfMessagesSent", queue),
        ("empty receives", "AWS/SQS", "NumberOfEmptyReceives", queue),
    ]
    return [
        {
            "Id": f"m{number}",
            "Label": label,
            "MetricStat": {
                "Metric": {
                    "Namespace": namespace,
                    "MetricName": metric,
                    "Dimensions": [{"Name": k, "Value": v} for k, v in dimensions.items()],
                },
                "Period": MINUTE,
                "Stat": "Sum",
            },
        }
        for number, (label, namespace, metric, dimensions) in enumerate(metrics)
    ]


CHECKS = (
    Check(
        "bill",
        "CloudWatch has counted the run: requests, milliseconds, units",
        counted,
        Subject.behind_gateway,
        seconds=300,
    ),
)
