#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# A FIFO queue with deduplication by content remembers a message for five minutes, also after it was received and deleted:
# SQS takes the same message again and delivers nothing. One expects the same of moto.
# Seen: moto forgets a message when it is deleted, and delivers the second one. While the first is in flight, it does not.
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
    client = boto3.client("sqs")
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = client.create_queue(QueueName="tasks.fifo", Attributes=attributes)["QueueUrl"]
    send = {"QueueUrl": url, "MessageBody": "task-1", "MessageGroupId": "task-1"}
    client.send_message(**send)
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    client.send_message(**send)
    print("in flight:", len(client.receive_message(QueueUrl=url).get("Messages", [])))
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    print("deleted:", len(client.receive_message(QueueUrl=url).get("Messages", [])))
    client.send_message(**send)
    print("sent again:", len(client.receive_message(QueueUrl=url).get("Messages", [])))
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
in flight: 0
deleted: 0
sent again: 1
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto's FIFO queue remembers otherwise than it did. It says now: $seen" >&2; exit 1; }
