#!/usr/bin/env bash
# botocore 1.43.106 and 1.44.5, seen on 2026-11-29.
# AWS's page of Lambda's quotas says that a function runs for at most 900 seconds. One expects the API's model, by which
# tools check a template before it is sent, to say the same.
# Seen: the model of both versions has 5400 as the longest Timeout of a function.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seen=""
for version in 1.43.106 1.44.5; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -qq --disable-pip-version-check "botocore==$version"
    seen+=$("$folder/$version/bin/python" - <<'PROGRAM'
import botocore
from botocore.session import get_session

model = get_session().get_service_model("lambda")
print(botocore.__version__, model.shape_for("Timeout").metadata)
PROGRAM
)$'\n'
done
expected="1.43.106 {'min': 1, 'max': 5400}
1.44.5 {'min': 1, 'max': 5400}
"
[ "$seen" = "$expected" ] || { echo "The model has other bounds of a function's Timeout than it had. It says now: $seen" >&2; exit 1; }
