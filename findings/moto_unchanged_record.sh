#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# An item is written twice, the same each time, to a table with a stream. DynamoDB writes no record for a put or an update
# that changes no data (developer guide, "Change data capture for DynamoDB Streams"). One expects one record: INSERT.
# Seen: moto adds a MODIFY for the second put and another for an update, each with equal images. DynamoDB Local adds none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[dynamodb,dynamodbstreams]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")
os.environ["AWS_ACCOUNT_ID_ENDPOINT_MODE"] = "disabled"  # moto knows no account's endpoint of streams


with mock_aws():
    table = boto3.resource("dynamodb").create_table(
        TableName="tasks",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    table.put_item(Item={"id": "a", "state": "done"})
    table.put_item(Item={"id": "a", "state": "done"})
    table.update_item(
        Key={"id": "a"},
        UpdateExpression="SET #state = :done",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":done": "done"},
    )
    streams, arn = boto3.client("dynamodbstreams"), table.latest_stream_arn
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    iterator = streams.get_shard_iterator(
        StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    for record in streams.get_records(ShardIterator=iterator)["Records"]:
        images = record["dynamodb"]
        is_same = images.get("OldImage") == images["NewImage"]
        print(record["eventName"], "with equal images" if is_same else "with a new image")
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
INSERT with a new image
MODIFY with equal images
MODIFY with equal images
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto's stream has other records than it had. It says now: $seen" >&2; exit 1; }
