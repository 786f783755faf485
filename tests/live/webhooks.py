"""A webhook that is told of a task's end, signed, at a receiver that the check makes."""

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from tests.live.ground import public_function
from tests.live.subject import BrokenError, Check, Figures, Subject, ordered, require
from tests.unit.push.receivers import Receiver

WITHIN_S: Final = 60.0
REQUIRED: Final = ["exp", "iat", "jti", "event_id", "body_sha256", "config_id", "config_hmac"]

RECEIVER: Final = '''
"""Keeps the requests to a function URL in a queue."""

import json
import os

import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    kept = {name: event.get(name) for name in ("headers", "body", "isBase64Encoded")}
    sqs.send_message(QueueUrl=os.environ["KEPT"], MessageBody=json.dumps(kept))
    return {"statusCode": 200}
'''


@dataclass(frozen=True)
class Notification:
    """A request to the receiver; names of headers in lower case."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Hook:
    """A receiver: where it is, and what it has got since it was last asked."""

    url: str
    take: Callable[[], Awaitable[list[Notification]]]


@dataclass(frozen=True)
class Told:
    """What a receiver was told of a task's end, and the key whose signature of it holds."""

    notification: Notification
    url: str
    kid: str
    took_s: float


async def notified(subject: Subject) -> Figures:
    """Send a task with a webhook, and check what the webhook gets."""
    return {"seconds": (await told(subject)).took_s}


async def told(subject: Subject) -> Told:
    """Send a task with a webhook, and return what it gets, which is as the page `push` says."""
    token = uuid.uuid4().hex
    async with receiver(subject) as hook:
        began = time.monotonic()
        config = {"url": hook.url, "token": token}
        task = await subject.sent(ordered("say"), taskPushNotificationConfig=config)

        async def look() -> list[Notification]:
            return [one for one in await hook.take() if "x-a2a-consent" not in one.headers]

        first = (await subject.until("a notification", look, within_s=WITHIN_S))[0]
        took_s = round(time.monotonic() - began, 3)
    is_its = first.headers.get("x-a2a-notification-token") == token
    require(is_its, "the notification's token is wrong")
    kid, claims = await verified(subject, first, hook.url)
    own = hmac.new(token.encode(), claims["config_id"].encode(), hashlib.sha256).hexdigest()
    require(claims["config_hmac"] == own, "the signature is of another configuration")
    require(claims["sub"] == task["id"], "the notification is about another task")
    return Told(first, hook.url, kid, took_s)


async def verified(subject: Subject, sent: Notification, url: str) -> tuple[str, dict[str, str]]:
    """Check a signature as the page `push-receivers` says; return its key's id, its claims."""
    target = urlsplit(url)
    try:
        key_set = await subject.anonymous.get("/.well-known/jwks.json")
        signature = sent.headers["x-a2a-signature"]
        keys = jwt.PyJWKSet.from_dict(key_set.json())
        kid: str = jwt.get_unverified_header(signature)["kid"]
        claims: dict[str, str] = jwt.decode(
            signature,
            keys[kid],
            algorithms=["ES256"],
            audience=f"{target.scheme}://{target.netloc}",
            issuer=subject.ground.stack.endpoint.rstrip("/"),
            options={"require": REQUIRED},
        )
    except (KeyError, jwt.PyJWTError) as error:
        msg = f"the signature does not hold: {type(error).__name__} {error}"
        raise BrokenError(msg) from error
    digest = hashlib.sha256(sent.body).hexdigest()
    require(claims["body_sha256"] == digest, "the signature is of another body")
    return kid, claims


@asynccontextmanager
async def receiver(subject: Subject) -> AsyncIterator[Hook]:
    """A receiver on this machine if the agent runs here, else on AWS."""
    if not subject.is_here:
        yield await _on_aws(subject)
        return
    with Receiver() as receiver:

        async def take() -> list[Notification]:
            return [Notification(r.headers, r.body) for r in receiver.requests]

        yield Hook(receiver.url(), take)


async def _on_aws(subject: Subject) -> Hook:
    """A function with a URL, which keeps what it gets in a queue."""
    account, _ = subject.on_aws()
    url, queue = await public_function(subject, f"webhook-{uuid.uuid4().hex[:8]}", RECEIVER)

    async def take() -> list[Notification]:
        most = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 5}
        answer = await account.call("sqs", "receive_message", QueueUrl=queue, **most)
        kept = answer.get("Messages", ())
        for one in kept:
            handle = one["ReceiptHandle"]
            await account.call("sqs", "delete_message", QueueUrl=queue, ReceiptHandle=handle)
        found = [_kept(json.loads(one["Body"])) for one in kept]
        return [one for one in found if "x-a2a-event-id" in one.headers]

    return Hook(f"{url}/", take)


def _kept(item: dict[str, Any]) -> Notification:
    body = str(item["body"] or "").encode()
    content = base64.b64decode(body) if item["isBase64Encoded"] else body
    return Notification(item["headers"], content)


CHECKS: Final = [
    Check("webhook", "a webhook is told of a task's end, with its token and a signature", notified)
]
