#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A write is made on condition that a path does not exist, attribute_not_exists(turn.claim), and the item has no turn. One
# expects the condition to hold however deep the path is: what is below nothing does not exist either.
# Seen: moto takes a path of two names, and refuses one of three (turn.claim.token) with a ValidationException.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb,sqs]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from botocore.exceptions import ClientError
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")


with mock_aws():
    table = boto3.resource("dynamodb").create_table(
        TableName="tasks",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table.put_item(Item={"id": "a"})
    for path in ("turn.claim", "turn.claim.token"):
        try:
            table.update_item(
                Key={"id": "a"},
                UpdateExpression="SET seen = :yes",
                ConditionExpression=f"attribute_not_exists({path})",
                ExpressionAttributeValues={":yes": True},
            )
            print(path, "written")
        except ClientError as error:
            print(path, error.response["Error"]["Code"])
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
turn.claim written
turn.claim.token ValidationException
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto takes missing paths otherwise than it did. It says now: $seen" >&2; exit 1; }
