#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-30.
# One update removes the first element of a list and replaces the third: "REMOVE steps[0] SET steps[2] = :new". The numbers
# are those of the list before the update, in DynamoDB Local at least, and one expects the same of moto.
# Seen: moto removes first, and then replaces the third of what is left. And elements that SET adds behind the end stay in
# the expression's order; DynamoDB sorts them by their numbers ("SET" in the developer guide, "Using update expressions").
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
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

    def updated(expression, **values):
        table.put_item(Item={"id": "a", "steps": ["0", "1", "2", "3"]})
        return table.update_item(
            Key={"id": "a"},
            UpdateExpression=expression,
            ExpressionAttributeValues={f":{name}": value for name, value in values.items()},
            ReturnValues="ALL_NEW",
        )["Attributes"]["steps"]

    print(updated("REMOVE steps[0] SET steps[2] = :new", new="new"))
    print(updated("SET steps[9] = :nine, steps[7] = :seven", nine="nine", seven="seven"))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
['1', '2', 'new']
['0', '1', '2', '3', 'nine', 'seven']
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto counts the elements of lists otherwise than it did. It says now: $seen" >&2; exit 1; }
