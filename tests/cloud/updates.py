"""Checks that change a deployed stack: its parameters, its keys, what runs its agent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.push.signing import _signing_key
from a2a_serverless.storage.keys import SETTLED_S
from tests.cloud.deployment import ROOT, Deployment
from tests.cloud.own import UNANSWERED, Own, alone, command
from tests.live.callers import ENDPOINTS, issuer_for
from tests.live.findings import Figures, require
from tests.live.forms import addresses, is_so, opened
from tests.live.releases import versions_of
from tests.live.runner import Findings
from tests.live.subject import VERSION, Subject
from tests.live.webhooks import Told, told, verified
from tests.support.issuers import Issuer

ISSUER: Final = "https://issuer.example.com"
"""Whose tokens are shown. It is never asked: its keys are on this machine."""
TAKEN_S: Final = 310.0
"""Every process reads the keys again within five minutes."""


@dataclass(frozen=True)
class Emulated:
    """Updates a stack on the emulator as its owner does; what was interrupted ends with the run."""

    deployment: Deployment
    found: Findings
    keys_at: list[str] = field(default_factory=list)
    """Where the keys of the issuer are: the parameter takes https alone."""

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        """Deploy the stack with other values of parameters; say where keys of tokens are."""
        if self.found.interrupted:
            raise ConnectionAbortedError
        deployment = self.deployment
        if not is_so(await deployment.stack(), parameters):
            await deployment.deploy(**parameters)
            for function in ENDPOINTS if "oidc" in parameters.get("Auth", "") else ():
                versions = await versions_of(subject, function, is_undone=False)
                # The next update takes it away again.
                await versions.take(A2A_OIDC_JWKS_URL=self.keys_at[-1])
        subject.stack = await deployment.stack()

    async def variables(self, subject: Subject) -> Mapping[str, str]:
        """Return the stack's addresses, and credentials of the role that fargate.yaml gives."""
        deployment, stack = self.deployment, await self.deployment.stack()
        given = {name: stack.outputs[name] for name in ("Table", "Queue", "UndecodableQueue")}
        role = await alone(deployment, subject, "worker", _role_of(given), **given)
        credentials = await deployment.session(role)
        return {**addresses(stack), **deployment.emulator.environment(*credentials)}

    async def issuer(self, subject: Subject) -> Issuer:
        """Open an issuer on this machine, and have its tokens name another one."""
        issuer = await opened(subject, issuer_for(subject))
        self.keys_at.append(f"{issuer.url}/keys")
        issuer.url = ISSUER
        return issuer


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
        await subject.until("the first key again", again, within_s=60, every_s=1)

    async def again() -> bool | None:
        return await status(old) == httpx.codes.OK or None

    async def status(key: str) -> int:
        try:
            answer = await subject.anonymous.get(path, headers={**VERSION, "X-API-Key": key})
        except httpx.HTTPError:  # of a process that was just ended
            return 0
        return answer.status_code

    async def taken() -> bool | None:
        return await status(new) == httpx.codes.OK or None

    async def over() -> bool | None:
        return await status(old) == httpx.codes.UNAUTHORIZED or None

    require(await status(new) == httpx.codes.UNAUTHORIZED, "an unknown key was taken")
    subject.made.note("keys", secret, undo)
    began = subject.clock.monotonic()
    await give(new, old)
    await subject.until("the new key", taken, within_s=TAKEN_S, every_s=5)
    took_s = round(subject.clock.monotonic() - began)
    require(await status(old) == httpx.codes.OK, "the old key was refused beside the new one")
    await give(new)
    _restart(deployment)  # a new process reads what is there
    await subject.until("the new key in new processes", taken, within_s=20, every_s=1)
    await subject.until("the end of the old key", over, within_s=20, every_s=1)
    return {"taken after s": took_s}


def _restart(deployment: Deployment, *functions: str) -> None:
    """End the processes of the functions that clients call, and of those that are named."""
    for name in (*ENDPOINTS, *functions):
        for pid in deployment.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def resigned(deployment: Deployment, subject: Subject) -> Figures:
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

    async def gone() -> bool | None:
        with contextlib.suppress(*UNANSWERED):
            return await _published(subject) == {new} or None
        return None

    await subject.until("the end of the revoked key", gone, within_s=60, every_s=1)
    return {"keys published": 2, "revoked": 1}


async def _published(subject: Subject) -> set[str]:
    key_set = await subject.anonymous.get("/.well-known/jwks.json")
    return {key["kid"] for key in key_set.json()["keys"]}


def _role_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the template of the workers' role alone: the emulator runs no containers."""
    whole = yaml_parse((ROOT / "fargate.yaml").read_text(encoding="utf-8"))
    parameters = {
        name: {k: v for k, v in each.items() if k != "AllowedPattern"}  # https alone
        for name, each in whole["Parameters"].items()
        if "Default" in each or name in given
    }
    resources = {"TaskRole": whole["Resources"]["TaskRole"]}
    return {"Parameters": parameters, "Conditions": whole["Conditions"], "Resources": resources}


CHECKS: Final = (
    Own("key-rotation", "a second key is taken, and the first one refused after its end", rotated),
    Own(
        "signing-rotation",
        "a new signing key is published, and then signs, beside its former",
        resigned,
    ),
)
