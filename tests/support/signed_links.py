"""A bucket's front door that holds links to their signatures, which emulators do not."""

import asyncio
import base64
import hashlib
import hmac
import os
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

import botocore.exceptions
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from a2a_serverless.aws import client
from a2a_serverless.clock import SystemClock

_UNSIGNED: Final = ("x-amz-", "if-none-match")
"""How the headers begin that mean something to S3, so that a link has to have them signed."""


class Door:
    """S3 as an ASGI application, over the bucket of moto in this process.

    It computes each signature again (version 4, in the query) from the request as it has come, and
    holds it to its expiry, its signed headers, its length, its SHA-256 and its precondition.
    An address of this machine has the bucket in its path.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self.later = timedelta(0)
        """How much later than now it is here."""
        self.seen: list[dict[str, str]] = []
        """The headers of each request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.seen.append(dict(request.headers))
        status = self._refused(request)
        response = Response(status_code=status) if status else await self._answered(request)
        await response(scope, receive, send)

    def _refused(self, request: Request) -> int:
        query = dict(parse_qsl(request.url.query))
        given = query.pop("X-Amz-Signature", "")
        signed = query.get("X-Amz-SignedHeaders", "").split(";")
        needed = [n for n in request.headers if n.startswith(_UNSIGNED)]
        if "authorization" in request.headers or not {"host", *needed} <= {*signed}:
            return 400 if "authorization" in request.headers else 403
        if not hmac.compare_digest(given, _signature(request, query, signed)):
            return 403
        begun = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        ends = begun + timedelta(seconds=int(query["X-Amz-Expires"]))
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        return 403 if now + self.later > ends else 0

    async def _answered(self, request: Request) -> Response:
        key = unquote(request.url.path).removeprefix("/").removeprefix(f"{self._bucket}/")
        s3: Any = client("s3")
        if request.method != "PUT":
            return await asyncio.to_thread(_read, s3, self._bucket, key, request)
        body = await request.body()
        if request.headers.get("content-length") != str(len(body)):
            return Response(status_code=411)
        checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if request.headers["x-amz-checksum-sha256"] != checksum:
            return Response(status_code=400)
        is_new = request.headers.get("if-none-match") == "*"
        if is_new and await asyncio.to_thread(_has, s3, self._bucket, key):
            return Response(status_code=412)
        stored = {"Bucket": self._bucket, "Key": key, "Body": body}
        await asyncio.to_thread(lambda: s3.put_object(**stored))
        return Response()


def _read(s3: Any, bucket: str, key: str, request: Request) -> Response:
    """An object, or a range of it, with the headers that its link has fixed."""
    asked = {"Range": request.headers["range"]} if "range" in request.headers else {}
    try:
        found = s3.get_object(Bucket=bucket, Key=key, **asked)
    except botocore.exceptions.ClientError:
        return Response(status_code=404)
    fixed = ("content-type", "content-disposition")
    headers = {name: request.query_params[f"response-{name}"] for name in fixed}
    return Response(found["Body"].read(), 206 if asked else 200, headers)


def _has(s3: Any, bucket: str, key: str) -> bool:
    try:
        s3.head_object(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError:
        return False
    return True


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _signature(request: Request, query: dict[str, str], signed: list[str]) -> str:
    """The signature that AWS's rules give a request, from what it is, with the secret key."""
    canonical = "\n".join(
        (
            request.method,
            quote(unquote(request.url.path), safe="/-_.~"),
            "&".join(sorted(f"{_quoted(k)}={_quoted(v)}" for k, v in query.items())),
            *(f"{name}:{request.headers.get(name, '').strip()}" for name in signed),
            "",
            ";".join(signed),
            "UNSIGNED-PAYLOAD",
        )
    )
    scope = query["X-Amz-Credential"].partition("/")[2]
    told = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{told}"
    key = f"AWS4{os.environ['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()
