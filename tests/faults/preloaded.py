"""What the fork server loads beside the modules that a command imports at its start.

A command imports these when it serves, which is half of its start.
"""

from __future__ import annotations

import fastapi  # noqa: F401 - imported for its effect, as all here
import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.auto
import uvicorn.protocols.websockets.auto  # noqa: F401

from a2a_serverless.aws import _session
from tests.support import read_once

read_once.keep_descriptions()
read_once.keep_root_certificates()
for _service in ("dynamodb", "sqs"):
    _session().create_client(_service, region_name="us-east-1")
