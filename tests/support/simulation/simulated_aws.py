"""DynamoDB, SQS and S3 simulated by moto in this process: no account, no network, no Docker."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto import mock_aws
from moto.core.models import botocore_stubber
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from a2a_serverless import aws
from a2a_serverless_tools.local.provision import Names, provision
from tests.support.mended_moto import mend_moto

mend_moto()

_ENVIRONMENT = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1")
_ENVIRONMENT |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
_ENVIRONMENT |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
_ENVIRONMENT["AWS_ACCOUNT_ID_ENDPOINT_MODE"] = "disabled"  # moto does not know such endpoints
BUCKET = "local-blobs"
_FOREIGN = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN")
"""Variables of a developer's shell that must not reach the simulation."""


@contextmanager
def simulated_aws() -> Iterator[Names]:
    """Simulate AWS with table, queues and bucket of template.yaml, for all threads of the process.

    moto is not safe under threads: it loses puts that run beside transactions. Under one lock every
    request is a single step, as on AWS. A long poll would hold the lock: receive without waiting.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN} | _ENVIRONMENT
    environment["A2A_BLOBS"] = BUCKET
    with mock.patch.dict(os.environ, environment, clear=True), mock_aws(), _one_at_a_time():
        aws.forget_clients()
        try:
            names = Names.with_prefix("local")
            aws.client("s3").create_bucket(Bucket=BUCKET)
            yield provision(aws.client("dynamodb"), aws.client("sqs"), names=names)
        finally:
            aws.forget_clients()


def stored_blobs() -> list[str]:
    found = aws.client("s3").list_objects_v2(Bucket=BUCKET)
    return [each["Key"] for each in found.get("Contents", ())]


async def served_s3(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer requests of processes beside this one, as an ASGI application: moto's S3, on HTTP."""
    request = Request(scope, receive)
    path = f"{scope['raw_path'].decode()}?{scope['query_string'].decode()}"
    prepared = AWSPreparedRequest(
        method=request.method,
        url=f"https://s3.amazonaws.com{path}",
        headers=HTTPHeaders.from_pairs(request.headers.items()),
        body=await request.body(),
        stream_output=False,
    )
    answer = await asyncio.to_thread(botocore_stubber.process_request, prepared)
    assert answer is not None
    status, headers, body = answer
    headers = {k: str(v) for k, v in headers.items() if k.lower() != "content-length"}
    await Response(body, status, headers)(scope, receive, send)


_lock = threading.RLock()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    process = botocore_stubber.process_request

    def locked(request: Any) -> Any:
        with _lock:
            return process(request)

    with mock.patch.object(botocore_stubber, "process_request", locked):
        yield
