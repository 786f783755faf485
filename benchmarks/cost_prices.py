"""The bill for counted usage, at the prices of `a2a_serverless_tools.operate.prices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil

from a2a_serverless_tools.operate.prices import (
    API_REQUEST,
    BACKED_UP_GB_MONTH,
    FARGATE_GB_HOUR,
    FARGATE_VCPU_HOUR,
    GB,
    GB_SECOND,
    INVOCATION,
    LOGGED_GB,
    PUBLIC_IPV4_HOUR,
    READ_UNIT,
    SENT_GB,
    SQS_REQUEST,
    STORED_GB_MONTH,
    WRITE_UNIT,
)

STREAMED_REQUEST_BYTES = 10 * 1024 * 1024
"""The bytes of a streamed answer that cost one request; each further piece costs another one."""


@dataclass(kw_only=True)
class Counts:
    """The usage of one task, or of a month."""

    write_units: float = 0
    read_units: float = 0
    stored_bytes: float = 0
    sqs_requests: float = 0
    api_requests: float = 0
    invocations: float = 0
    gb_seconds: float = 0
    logged_bytes: float = 0
    sent_bytes: float = 0
    vcpu_hours: float = 0
    gb_hours: float = 0
    address_hours: float = 0
    """Hours of workers outside of Lambda, as in the two fields before."""

    def over(self, tasks: int) -> Counts:
        """Return the average over a number of tasks."""
        return Counts(**{f.name: getattr(self, f.name) / tasks for f in fields(self)})


def bill(counts: Counts, *, times: float, kept_days: float) -> Mapping[str, float]:
    """Return the dollars by service for `times` the usage, with items stored for `kept_days`."""
    months = kept_days / 30
    storage = counts.stored_bytes / GB * (STORED_GB_MONTH + BACKED_UP_GB_MONTH) * months
    each = {
        "DynamoDB writes": counts.write_units * WRITE_UNIT,
        "DynamoDB reads": counts.read_units * READ_UNIT,
        "DynamoDB storage and backup": storage,
        "SQS requests": counts.sqs_requests * SQS_REQUEST,
        "API Gateway requests": counts.api_requests * API_REQUEST,
        "Lambda requests": counts.invocations * INVOCATION,
        "Lambda time": counts.gb_seconds * GB_SECOND,
        "CloudWatch Logs": counts.logged_bytes / GB * LOGGED_GB,
        "Fargate": counts.vcpu_hours * FARGATE_VCPU_HOUR
        + counts.gb_hours * FARGATE_GB_HOUR
        + counts.address_hours * PUBLIC_IPV4_HOUR,
        "data out": counts.sent_bytes / GB * SENT_GB,
    }
    return {name: dollars * times for name, dollars in each.items()}


def billed_requests(streamed_bytes: int) -> int:
    """Return the requests that API Gateway bills for one streamed answer."""
    return max(1, ceil(streamed_bytes / STREAMED_REQUEST_BYTES))
