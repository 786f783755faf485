#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A set of numbers has each number once. DynamoDB refuses 1 and 1.0 in one set as duplicates, and an ADD of 1.00 to a set
# with 1 changes nothing; one expects the same of moto, whose comparisons do take 1 and 1.0 as equal.
# Seen: the set keeps all three, as they were written.
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
    client = boto3.client("dynamodb")
    key = {"id": {"S": "a"}}
    client.put_item(TableName="tasks", Item={**key, "seen": {"NS": ["1", "1.0"]}})
    client.update_item(
        TableName="tasks",
        Key=key,
        UpdateExpression="ADD seen :number",
        ExpressionAttributeValues={":number": {"NS": ["1.00"]}},
    )
    print(sorted(client.get_item(TableName="tasks", Key=key)["Item"]["seen"]["NS"]))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
['1', '1.0', '1.00']
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto's sets of numbers are otherwise than they were. It says now: $seen" >&2; exit 1; }
