#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# An update sets an attribute of 300 KB to another text of 300 KB. The item has 300 KB before and after it, and may have
# 400 KB ("Item size" in the quotas of DynamoDB's developer guide). One expects the update to be made, as a put is.
# Seen: moto counts the old text and the new one, and refuses the update with a ValidationException. It takes a put of
# the same item, and the same update after the attribute was removed. DynamoDB Local takes all three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from botocore.exceptions import ClientError
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")


def updated(table, expression, **values):
    more = {"ExpressionAttributeValues": values} if values else {}
    try:
        table.update_item(Key={"id": "a"}, UpdateExpression=expression, **more)
    except ClientError as error:
        return error.response["Error"]["Message"]
    return "written"


with mock_aws():
    table = boto3.resource("dynamodb").create_table(
        TableName="tasks",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    for size in (200_000, 300_000):
        before, after = "x" * size, "y" * size
        table.put_item(Item={"id": "a", "said": before})
        print(size, "update:", updated(table, "SET said = :after", **{":after": after}))
        table.put_item(Item={"id": "a", "said": after})
        print(size, "put: written")
        updated(table, "REMOVE said")
        print(size, "removed before:", updated(table, "SET said = :after", **{":after": after}))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
200000 update: written
200000 put: written
200000 removed before: written
300000 update: Item size to update has exceeded the maximum allowed size
300000 put: written
300000 removed before: written
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto counts an item's size otherwise than it did. It says now: $seen" >&2; exit 1; }
