#!/usr/bin/env bash
# aws-sam-cli 1.170.0, seen on 2026-11-29.
# samconfig.toml has parameter_overrides = "Stage=prod Topic= Settings=A=1, B=2": a value was emptied, and another one has a
# space. One expects the empty value, or a refusal, and the whole of the other one, or a refusal.
# Seen: Topic is left out without a word, so that a deployed stack keeps what it had. Settings ends at the space, "A=1,", and
# the rest is a parameter B, which the template does not have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'aws-sam-cli==1.170.0'
cd "$folder"
cat >template.yaml <<'TEMPLATE'
AWSTemplateFormatVersion: "2010-09-09"
Parameters:
  Stage: {Type: String, Default: test}
  Topic: {Type: String, Default: ""}
  Settings: {Type: String, Default: ""}
Resources:
  Queue: {Type: "AWS::SQS::Queue"}
TEMPLATE
cat >samconfig.toml <<'SETTINGS'
version = 0.1

[default.deploy.parameters]
stack_name = "mine"
s3_bucket = "mine"
parameter_overrides = "Stage=prod Topic= Settings=A=1, B=2"
SETTINGS
# It prints what it has read, and then asks a CloudFormation that is not there.
export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=us-east-1 AWS_MAX_ATTEMPTS=1
export AWS_ENDPOINT_URL=http://127.0.0.1:9 SAM_CLI_TELEMETRY=0
"$folder/venv/bin/sam" deploy >"$folder/log" 2>&1 || true
seen=$(grep 'Parameter overrides' "$folder/log" | tr -s ' ' | sed 's/^[[:space:]]*//') || {
    cat "$folder/log" >&2
    echo "sam deploy runs no longer as it did." >&2
    exit 1
}
expected='Parameter overrides : {"Stage": "prod", "Settings": "A=1,", "B": "2"}'
[ "$seen" = "$expected" ] || { echo "SAM reads parameters otherwise than it did. It says now: $seen" >&2; exit 1; }
