#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A transaction that is sent again with its ClientRequestToken succeeds in DynamoDB for ten minutes without being applied
# twice, and another transaction with that token is refused (IdempotentParameterMismatchException). One expects the same of moto.
# Seen: moto does not look at the token. The repeated creation is refused by its own condition, and the token serves twice.
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


def created(client, task, token):
    item = {"task": {"S": task}}
    put = {"TableName": "tasks", "Item": item, "ConditionExpression": "attribute_not_exists(task)"}
    try:
        client.transact_write_items(TransactItems=[{"Put": put}], ClientRequestToken=token)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "created"


with mock_aws():
    client = boto3.client("dynamodb")
    client.create_table(
        TableName="tasks",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "task", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "task", "AttributeType": "S"}],
    )
    print("first:", created(client, "task-1", "one-token"))
    print("the same again:", created(client, "task-1", "one-token"))
    print("another one:", created(client, "task-2", "one-token"))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
first: created
the same again: TransactionCanceledException
another one: created
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto treats a request token otherwise than it did. It says now: $seen" >&2; exit 1; }
