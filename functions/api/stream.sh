#!/bin/sh
# The handler of StreamFunction: the Lambda Web Adapter starts it and passes requests on to it.
# The layer (/opt/python) goes before the runtime's own directory, which has boto3.
set -eu
cd "${LAMBDA_TASK_ROOT:-$(dirname "$0")}"
export PYTHONPATH="$PWD:/opt/python${LAMBDA_RUNTIME_DIR:+:$LAMBDA_RUNTIME_DIR}${PYTHONPATH:+:$PYTHONPATH}"
exec python stream_server.py
