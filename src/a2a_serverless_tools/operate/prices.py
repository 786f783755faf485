"""The prices of AWS.

Public list prices of us-east-1 in US dollars, November 2026, arm64, without free tiers, discounts
and taxes. AWS's pricing pages are the reference; they change.
"""

from __future__ import annotations

from typing import Final

MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
SECONDS_OF_MONTH: Final = 30 * 86_400

# aws.amazon.com/dynamodb/pricing/on-demand
WRITE_UNIT: Final = 0.625 / MILLION
READ_UNIT: Final = 0.125 / MILLION
STORED_GB_MONTH: Final = 0.25
BACKED_UP_GB_MONTH: Final = 0.20  # point-in-time recovery
# aws.amazon.com/lambda/pricing
INVOCATION: Final = 0.20 / MILLION
GB_SECOND: Final = 0.0000133334
# aws.amazon.com/api-gateway/pricing, REST API
API_REQUEST: Final = 3.50 / MILLION
# aws.amazon.com/sqs/pricing, FIFO, up to 64 KB a request
SQS_REQUEST: Final = 0.50 / MILLION
# aws.amazon.com/cloudwatch/pricing
LOGGED_GB: Final = 0.50
LOGS_GB_MONTH: Final = 0.03
METRIC_MONTH: Final = 0.30
ALARM_METRIC_MONTH: Final = 0.10
DASHBOARD_MONTH: Final = 3.00
# aws.amazon.com/secrets-manager/pricing
SECRET_MONTH: Final = 0.40
# aws.amazon.com/kms/pricing
KEY_MONTH: Final = 1.00
# aws.amazon.com/waf/pricing: a web ACL, and each rule or group of rules in it
WEB_ACL_MONTH: Final = 5.00
WEB_ACL_RULE_MONTH: Final = 1.00
# aws.amazon.com/ec2/pricing/on-demand, data transfer out
SENT_GB: Final = 0.09
# aws.amazon.com/fargate/pricing, Linux on arm64, on demand; spot is up to 70 % less, and varies
FARGATE_VCPU_HOUR: Final = 0.03238
FARGATE_GB_HOUR: Final = 0.00356
# aws.amazon.com/vpc/pricing, a public address; a NAT gateway in its place is 0.045 and 0.045 a GB
PUBLIC_IPV4_HOUR: Final = 0.005
