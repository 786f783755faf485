#!/usr/bin/env bash
# moto 5.2.5 with boto3 1.44.5, seen on 2026-11-29.
# UpdateSecretVersionStage moves AWSCURRENT to another version, and GetSecretValue without a version or stage returns the
# version that has AWSCURRENT. One expects the same of moto.
# Seen: without a stage moto returns the version that was put as the current one; with VersionStage=AWSCURRENT, the moved one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'moto[secretsmanager]==5.2.5' 'boto3==1.44.5' 'botocore==1.44.5'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import os

import boto3
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1")

with mock_aws():
    client = boto3.client("secretsmanager")
    first = client.create_secret(Name="keys", SecretString="first")["VersionId"]
    put = client.put_secret_value(SecretId="keys", SecretString="second", VersionStages=["NEXT"])
    client.update_secret_version_stage(
        SecretId="keys",
        VersionStage="AWSCURRENT",
        MoveToVersionId=put["VersionId"],
        RemoveFromVersionId=first,
    )
    named = client.get_secret_value(SecretId="keys", VersionStage="AWSCURRENT")
    print("AWSCURRENT:", named["SecretString"])
    print("without a stage:", client.get_secret_value(SecretId="keys")["SecretString"])
PROGRAM
) || { cat "$folder/log" >&2; echo "moto runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
AWSCURRENT: second
without a stage: first
SEEN
)
[ "$seen" = "$expected" ] || { echo "moto returns another version of a secret than it did. It says now: $seen" >&2; exit 1; }
