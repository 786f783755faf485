"""The prices of AWS, and the bill for counted usage.

Public list prices of us-east-1 in US dollars, November 2026, arm64, without free tiers, discounts
and taxes. AWS's pricing pages are the reference; they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil

MILLION = 1_000_000
GB = 1_000_000_000
SECONDS_OF_MONTH = 30 * 86_400

# aws.amazon.com/dynamodb/pricing/on-demand
WRITE_UNIT = 0.625 / MILLION
READ_UNIT = 0.125 / MILLION
STORED_GB_MONTH = 0.25
BACKED_UP_GB_MONTH = 0.20  # point-in-time recovery
# aws.amazon.com/lambda/pricing
INVOCATION = 0.20 / MILLION
GB_SECOND = 0.0000133334
# aws.amazon.com/api-gateway/pricing, REST API
API_REQUEST = 3.50 / MILLION
STREAMED_REQUEST_BYTES = 10 * 1024 * 1024
"""The bytes of a streamed answer that cost one request; each further piece costs another one."""
# aws.amazon.com/sqs/pricing, FIFO, up to 64 KB a request
SQS_REQUEST = 0.50 / MILLION
# aws.amazon.com/cloudwatch/pricing
LOGGED_GB = 0.50
LOGS_GB_MONTH = 0.03
METRIC_MONTH = 0.30
ALARM_METRIC_MONTH = 0.10
DASHBOARD_MONTH = 3.00
# aws.amazon.com/secrets-manager/pricing
SECRET_MONTH = 0.40
# aws.amazon.com/kms/pricing
KEY_MONTH = 1.00
# aws.amazon.com/waf/pricing: a web ACL, and each rule or group of rules in it
WEB_ACL_MONTH, WEB_ACL_RULE_MONTH = 5.00, 1.00
# aws.amazon.com/ec2/pricing/on-demand, data transfer out
SENT_GB = 0.09
# aws.amazon.com/fargate/pricing, Linux on arm64, on demand; spot is up to 70 % less, and varies
FARGATE_VCPU_HOUR = 0.03238
FARGATE_GB_HOUR = 0.00356
# aws.amazon.com/vpc/pricing, a public address; a NAT gateway in its place is 0.045 and 0.045 a GB
PUBLIC_IPV4_HOUR = 0.005


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
