#!/usr/bin/env bash
# MiniStack 1.5.33 with botocore 1.43.106, seen on 2026-11-30.
# One update removes two elements of a list, "REMOVE steps[0], steps[1]". Both numbers are those of the list before the
# update ("REMOVE" in DynamoDB's developer guide, "Using update expressions"). One expects the first two to be gone.
# Seen: MiniStack removes the first, and then the second of what is left: the third is gone, and the second stays.
set -euo pipefail
folder=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" && wait "$server" || true; fi; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'ministack==1.5.33' 'botocore==1.43.106'
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$folder/tmp"
TMPDIR="$folder/tmp" STATE_DIR="$folder/state" S3_DATA_DIR="$folder/s3" BIND_HOST=127.0.0.1 GATEWAY_PORT="$port" \
    IOT_MTLS_ENABLED=0 SFTP_ENABLED=0 "$folder/venv/bin/ministack" >"$folder/server" 2>&1 &
server=$!
seen=$("$folder/venv/bin/python" - "$port" 2>"$folder/log" <<'PROGRAM'
import os
import sys

from botocore.config import Config
from botocore.session import get_session

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")

# The server may need some seconds to listen: a refused connection is tried again.
client = get_session().create_client(
    "dynamodb",
    endpoint_url=f"http://127.0.0.1:{sys.argv[1]}",
    config=Config(retries={"mode": "standard", "total_max_attempts": 12}),
)
client.create_table(
    TableName="tasks",
    BillingMode="PAY_PER_REQUEST",
    KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
)
client.get_waiter("table_exists").wait(TableName="tasks")
steps = [{"S": name} for name in ("first", "second", "third", "fourth")]
client.put_item(TableName="tasks", Item={"id": {"S": "a"}, "steps": {"L": steps}})
answer = client.update_item(
    TableName="tasks",
    Key={"id": {"S": "a"}},
    UpdateExpression="REMOVE steps[0], steps[1]",
    ReturnValues="ALL_NEW",
)
print([step["S"] for step in answer["Attributes"]["steps"]["L"]])
PROGRAM
) || { cat "$folder/server" "$folder/log" >&2; echo "MiniStack runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
['second', 'fourth']
SEEN
)
[ "$seen" = "$expected" ] || { echo "MiniStack removes elements of lists otherwise than it did. It says now: $seen" >&2; exit 1; }
