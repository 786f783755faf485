#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A read asks for two elements of one list by a projection, "steps[0], steps[2]". DynamoDB answers with both, in the
# order of the list; one expects the same of moto.
# Seen: the answer has one element, the one that the projection names last. DynamoDB Local answers with both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb,sqs]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")


with mock_aws():
    table = boto3.resource("dynamodb").create_table(
        TableName="tasks",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table.put_item(Item={"id": "a", "steps": ["plan", "pay", "ship"]})
    for projection in ("steps[0], steps[2]", "steps[2], steps[0]"):
        print(table.get_item(Key={"id": "a"}, ProjectionExpression=projection)["Item"])
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
{'steps': ['ship']}
{'steps': ['plan']}
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto projects list elements otherwise than it did. It says now: $seen" >&2; exit 1; }
