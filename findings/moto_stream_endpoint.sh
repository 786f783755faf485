#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A program reads a table's stream in mock_aws, by a client of boto3 with the default settings. One expects moto to
# answer, wherever boto3 sends the request ("Account-based endpoints" in the reference guide of AWS SDKs).
# Seen: boto3 sends a request that names a stream to the account's endpoint, 123456789012.streams-ddb.us-east-1. moto does
# not know it: 404, "Not yet implemented". With account_id_endpoint_mode="disabled" it describes the stream.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb,dynamodbstreams]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")


def described(arn, **more):
    streams = boto3.client("dynamodbstreams", config=Config(**more))
    try:
        return streams.describe_stream(StreamArn=arn)["StreamDescription"]["StreamStatus"]
    except ClientError as error:
        return f"{error.response['Error']['Code']} {error.response['Error']['Message']}"


with mock_aws():
    table = boto3.resource("dynamodb").create_table(
        TableName="tasks",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    )
    print("by default:", described(table.latest_stream_arn))
    print("disabled:", described(table.latest_stream_arn, account_id_endpoint_mode="disabled"))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
by default: 404 Not yet implemented
disabled: ENABLED
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto describes a stream otherwise than it did. It says now: $seen" >&2; exit 1; }
