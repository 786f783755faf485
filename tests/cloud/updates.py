"""Checks that change a deployed stack: its parameters, its keys, what runs its agent."""

import contextlib
import json
import os
import signal
import time
import uuid
from typing import Final

import httpx

from a2a_serverless.push.signing import _signing_key
from a2a_serverless.storage.keys import SETTLED_S
from tests.cloud.deployment import Deployment
from tests.cloud.own import ENDPOINTS, UNANSWERED, command, own
from tests.live.ground import changed
from tests.live.releases import swapped
from tests.live.subject import VERSION, Check, Figures, Subject, require
from tests.live.webhooks import Told, told, verified

OK, UNAUTHORIZED = httpx.codes.OK, httpx.codes.UNAUTHORIZED
TAKEN_S: Final = 310.0
"""Every process reads the keys again within five minutes."""


async def rotated(deployment: Deployment, subject: Subject) -> Figures:
    """Give a client a new key beside the old one, wait until it is taken, and take the old away."""
    account, stack = deployment.account, await deployment.stack()
    old, new = subject.credential, uuid.uuid4().hex
    secret = stack.outputs["ApiKeys"]
    found = await account.call("secretsmanager", "get_secret_value", SecretId=secret)
    keys = json.loads(found["SecretString"])
    path = f"/tasks/{await subject.begin('say')}"

    async def give(*of_default: str) -> None:
        text = json.dumps({**keys, "default": list(of_default)})
        await account.call("secretsmanager", "put_secret_value", SecretId=secret, SecretString=text)

    async def undo() -> None:
        await give(old)
        _restart(deployment)
        # The checks that follow ask once: the gateway may still lead to a process that was ended.
        await subject.until("the first key again", lambda: has(old, OK), within_s=60, every_s=1)

    async def has(key: str, status: int) -> bool:
        with contextlib.suppress(httpx.HTTPError):  # of a process that was just ended
            answer = await subject.anonymous.get(path, headers={**VERSION, "X-API-Key": key})
            return answer.status_code == status
        return False

    require(await has(new, UNAUTHORIZED), "an unknown key was taken")
    subject.made.note("keys", secret, undo)
    began = time.monotonic()
    await give(new, old)
    await subject.until("the new key", lambda: has(new, OK), within_s=TAKEN_S, every_s=5)
    took_s = round(time.monotonic() - began)
    require(await has(old, OK), "the old key was refused beside the new one")
    await give(new)
    _restart(deployment)  # a new process reads what is there
    await subject.until("new processes", lambda: has(new, OK), within_s=20, every_s=1)
    await subject.until("the old key's end", lambda: has(old, UNAUTHORIZED), within_s=20, every_s=1)
    return {"taken after s": took_s}


def _restart(deployment: Deployment, *functions: str) -> None:
    """End the processes of the functions that clients call, and of those that are named."""
    for name in (*ENDPOINTS, *functions):
        for pid in deployment.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def resigned(deployment: Deployment, subject: Subject) -> None:
    """Give the notifications another signing key, and look at who signs before and after its time.

    Then the former key is revoked, and the running process publishes it no more.

    The new key signs when each receiver can have it. That time is not waited for: the items of both
    published keys are given earlier ones.
    """
    call, stack = deployment.account.call, await deployment.stack()
    secret = uuid.uuid4().hex * 2
    new = _signing_key(secret).kid
    old = (await told(subject)).kid
    arn = stack.outputs["SigningSecret"]
    await call("secretsmanager", "put_secret_value", SecretId=arn, SecretString=secret)

    async def told_anew() -> Told | None:
        with contextlib.suppress(*UNANSWERED):  # of a process that was just ended
            return await told(subject)
        return None

    async def next_told() -> Told:
        _restart(deployment, "PushFunction")  # new processes read what is there
        return await subject.until("a notification", told_anew, within_s=60, every_s=1)

    before = await next_told()
    require(before.kid == old, "the new key signs before receivers can have it")
    require(await _published(subject) == {old, new}, "the new key is not published before it signs")
    for kid, times in ((old, 2), (new, 1)):
        earlier_ms = (time.time() - times * SETTLED_S) * 1000
        await call(
            "dynamodb",
            "update_item",
            TableName=stack.resources["TaskTable"],
            Key={"PK": {"S": "JWKS"}, "SK": {"S": f"KEY#{kid}"}},
            UpdateExpression="SET published_at = :at",
            ConditionExpression="attribute_exists(PK)",
            ExpressionAttributeValues={":at": {"N": str(round(earlier_ms))}},
        )
    after = await next_told()
    require(after.kid == new, "the former key still signs")
    require(await _published(subject) == {old, new}, "the former key is no longer published")
    await verified(subject, before.notification, before.url)
    await command(deployment, "keys", "revoke", old, "--yes")
    later = await subject.until("a notification", told_anew, within_s=60, every_s=1)
    require(later.kid == new, "the process that pushes signs with the revoked key")
    _restart(deployment)  # the processes that clients call keep the key set for minutes

    async def gone() -> bool:
        with contextlib.suppress(*UNANSWERED):
            return await _published(subject) == {new}
        return False

    await subject.until("the end of the revoked key", gone, within_s=60, every_s=1)


async def _published(subject: Subject) -> set[str]:
    key_set = await subject.anonymous.get("/.well-known/jwks.json")
    return {key["kid"] for key in key_set.json()["keys"]}


async def swapped_shared(subject: Subject) -> None:
    """Swap a bad version in and out while the turns in flight share one worker."""
    # Two turns fill a worker, which pulls no third one: that begins behind the alias.
    await changed(subject, WorkerTurns="2", WorkerTimeout="120", TurnTimeout="45")
    await swapped(subject)


CHECKS: Final = (
    Check("bad-version-shared", "turns of one worker outlive a bad version", swapped_shared),
    own("key-rotation", "a second key is taken, and the first one refused after its end", rotated),
    own("signing-rotation", "a new signing key is published first, and then signs", resigned),
)
