"""Checks that change a deployed stack: its parameters, its keys, what runs its agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.push.signing import SETTLED_S, signing_key
from tests.cloud.deployment import Deployment
from tests.cloud.emulator import ROOT
from tests.cloud.own import UNANSWERED, Own, alone
from tests.live.callers import ENDPOINTS, move, name_tokens
from tests.live.findings import Figures, require
from tests.live.releases import versions_of
from tests.live.subject import VERSION, Subject, state, status_text
from tests.live.webhooks import Told, told, verified
from tests.support.issuers import AUDIENCE, running_issuer

ISSUER: Final = "https://issuer.example.com"
"""Whose tokens are shown. It is never asked: its keys are on this machine."""
TAKEN_S: Final = 310.0
"""Every process reads the keys again within five minutes."""
OUTSIDE: Final = 6
START_S: Final = 120.0


async def moved(deployment: Deployment, subject: Subject) -> Figures:
    """Update the stack to both keys and tokens, to tokens alone, and back.

    Where the keys of the issuer are, the functions' variables say: the parameter takes https alone.
    """
    no_tokens = {"OidcIssuer": "", "OidcAudience": ""}
    with running_issuer() as issuer:
        keys_at, issuer.url = f"{issuer.url}/keys", ISSUER

        async def take(auth: str) -> None:
            taken = {"OidcIssuer": ISSUER, "OidcAudience": AUDIENCE}
            await deployment.deploy(Auth=auth, **(taken if "oidc" in auth else no_tokens))
            for function in ENDPOINTS if "oidc" in auth else ():
                versions = await versions_of(subject, function, is_undone=False)
                await versions.take(
                    A2A_OIDC_JWKS_URL=keys_at
                )  # the next update takes it away again
            await deployment.door.show((await deployment.stack()).resources)

        await name_tokens(subject, issuer)
        try:
            return await move(subject, issuer, take)
        except Exception:
            await deployment.deploy(Auth="api-key", **no_tokens)
            raise


async def shared(deployment: Deployment, subject: Subject) -> Figures:
    """Update the stack to shared turns, and have ten tasks run at once."""
    async with deployment.changed(
        WorkerTurns="10", WorkerConcurrency="2", WorkerTimeout="120", TurnTimeout="45"
    ):
        ids = [await subject.begin("steps", count=10, gap_s=1) for _ in range(10)]
        tasks = [await subject.ended(task_id, within_s=200) for task_id in ids]
    wrong = [it["id"] for it in tasks if state(it) != "COMPLETED"]
    require(not wrong, f"tasks that did not complete: {wrong}")
    processes = {status_text(it) for it in tasks}
    require(len(processes) <= 2, f"ten turns ran in {len(processes)} processes")
    return {"tasks": len(tasks), "processes": len(processes)}


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

    The new key signs when each receiver can have it. That time is not waited for: the published
    key's item is given an earlier one.
    """
    call, stack = deployment.account.call, await deployment.stack()
    secret = uuid.uuid4().hex * 2
    new = signing_key(secret).kid
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
    earlier_ms = (time.time() - SETTLED_S) * 1000
    await call(
        "dynamodb",
        "update_item",
        TableName=stack.resources["TaskTable"],
        Key={"PK": {"S": "JWKS"}, "SK": {"S": f"KEY#{new}"}},
        UpdateExpression="SET published_at = :at",
        ConditionExpression="attribute_exists(PK)",
        ExpressionAttributeValues={":at": {"N": str(round(earlier_ms))}},
    )
    after = await next_told()
    require(after.kid == new, "the former key still signs")
    require(await _published(subject) == {old, new}, "the former key is no longer published")
    await verified(subject, before.notification, before.url)
    return {"keys published": 2}


async def _published(subject: Subject) -> set[str]:
    key_set = await subject.anonymous.get("/.well-known/jwks.json")
    return {key["kid"] for key in key_set.json()["keys"]}


async def outside(deployment: Deployment, subject: Subject) -> Figures:
    """Update the stack to external workers, and run one with the role that fargate.yaml gives."""
    stack, folder = await deployment.stack(), deployment.door.folder
    given = {name: stack.outputs[name] for name in ("Table", "Queue", "UndecodableQueue")}
    variables = {f"A2A_{_snake(name)}": value for name, value in given.items()}
    async with deployment.changed(Worker="external"):
        waiting = await subject.begin("say")
        role = await alone(deployment, subject, "worker", _role_of(given), **given)
        credentials = await deployment.session(role)
        variables |= deployment.emulator.environment(*credentials)
        async with _worker(variables, folder / "worker.log"):
            ids = [await subject.begin("steps", count=3, gap_s=1) for _ in range(OUTSIDE)]
            tasks = [await subject.ended(it, within_s=100, every_s=1) for it in [waiting, *ids]]
    wrong = [it["id"] for it in tasks if state(it) != "COMPLETED"]
    require(not wrong, f"tasks that did not complete: {wrong}")
    processes = {status_text(it) for it in tasks[1:]}
    require(len(processes) == 1, f"one worker's turns ran in {len(processes)} processes")
    task_id = await subject.begin("steps", count=1, gap_s=0)
    back = await subject.ended(task_id, within_s=100)
    require(status_text(back) not in processes, "the function has not taken over again")
    return {"tasks": len(tasks), "processes": len(processes)}


def _snake(name: str) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", name).upper()


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


@asynccontextmanager
async def _worker(variables: Mapping[str, str], log: Path) -> AsyncIterator[None]:
    """Run a worker of this machine for the block."""
    program = ROOT / ".venv" / "bin" / "a2a-serverless"
    agent = f"{ROOT / 'tests' / 'live' / 'agent.py'}:agent"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program,
            *("worker", "--concurrency", "8", "--agent", agent),
            cwd=log.parent,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )
        try:
            async with asyncio.timeout(START_S):
                while "works on" not in (said := await asyncio.to_thread(log.read_text)):
                    require(process.returncode is None, f"the worker did not start: {said[:300]}")
                    await asyncio.sleep(0.1)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


CHECKS: Final = (
    Own("auth-move", "a client keeps its tasks from its key over both to tokens, and back", moved),
    Own("shared-turns", "with WorkerTurns=10 ten tasks share two processes", shared),
    Own("external-workers", "with Worker=external a worker of this machine takes over", outside),
    Own("key-rotation", "a second key is taken, and the first one refused after its end", rotated),
    Own(
        "signing-rotation",
        "a new signing key is published, and then signs, beside its former",
        resigned,
    ),
)
