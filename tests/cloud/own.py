"""What the checks of a deployment on the emulator are made of."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import free_port
from a2a_serverless_tools.cloud.stack import run
from tests.cloud.deployment import KEPT, MADE_AGAIN, PROGRAM, ROOT, Deployment
from tests.live.account import first_key
from tests.live.ground import Ground, alone
from tests.live.releases import versions_of
from tests.live.subject import ENDS, Check, Figures, Made, NotPossibleError, Subject, require, state
from tests.support import template
from tests.support.issuers import running_issuer

SLACK: Final = 3
"""How many times as long as on AWS everything may take, on a busy machine of two cores."""
LONGEST_S: Final = 300.0
"""Without slack, how long a task may take whose processes are killed: a kill costs it 90 s."""
COMMAND_S: Final = 180.0
AT_ONCE: Final = 4
"""Requests at the same time: each is a process of a function."""
ENDPOINTS: Final = ("ApiFunction", "StreamFunction")
ISSUER: Final = "https://issuer.example.com"
"""Whose tokens are shown. It is never asked: its keys are on this machine."""
UNANSWERED: Final = (httpx.HTTPError, ValueError, LookupError)
"""What a request ends in whose process was killed: no answer, or one of the gateway's own."""


@dataclass(kw_only=True)
class Emulated(Ground):
    """A stack on the emulator, updated by SAM as its owner does it."""

    changes: bool = True
    slack: float = SLACK
    deployment: Deployment
    keys_at: str
    """Where the keys of its tokens' issuer are: the parameter takes https alone."""

    async def settle(self) -> None:
        """Lead requests to the versions that are behind the aliases."""
        await self.deployment.door.show((await self.deployment.stack()).resources)

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        """Deploy the stack with other values of parameters; say where keys of tokens are."""
        if not parameters.items() <= (await self.deployment.stack()).parameters.items():
            await self.deployment.deploy(**parameters)
            for function in ENDPOINTS if "oidc" in parameters.get("Auth", "") else ():
                versions = await versions_of(subject, function)
                # The next update takes it away again.
                await versions.point(await versions.publish(A2A_OIDC_JWKS_URL=self.keys_at))
        self.stack = await self.deployment.stack()

    async def variables(self, subject: Subject) -> dict[str, str]:
        """Return a worker's environment, with credentials of the role that fargate.yaml gives."""
        given = {name: self.stack.outputs[name] for name in ("Table", "Queue", "UndecodableQueue")}
        made = await alone(subject, "worker", json.dumps(_role_of(given), default=str), **given)
        credentials = await self.deployment.session(made["TaskRole"])
        environment = self.deployment.emulator.environment(*credentials)
        return {**await super().variables(subject), **environment}


def _role_of(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the template of the workers' role alone: the emulator runs no containers."""
    whole = template.read(ROOT / "fargate.yaml")
    parameters = {
        name: {k: v for k, v in each.items() if k != "AllowedPattern"}  # https alone
        for name, each in whole["Parameters"].items()
        if "Default" in each or name in given
    }
    resources = {"TaskRole": whole["Resources"]["TaskRole"]}
    return {"Parameters": parameters, "Conditions": whole["Conditions"], "Resources": resources}


def own(name: str, proves: str, run: Callable[[Deployment, Subject], Awaitable[Figures]]) -> Check:
    """Return a check that needs the emulator's deployment."""

    async def there(subject: Subject) -> Figures:
        ground = subject.ground
        if not isinstance(ground, Emulated):
            raise NotPossibleError("needs the emulated AWS of `make cloud`")
        return await run(ground.deployment, subject)

    return Check(name, proves, there)


async def command(deployment: Deployment, *arguments: str) -> str:
    """Run a command of operators on the stack; return what it said."""
    at = ["--stack", deployment.name, "--region", "us-east-1"]
    whole, environment = [str(PROGRAM), *arguments, *at], deployment.environment()
    return await run(whole, environment, within_s=COMMAND_S, folder=ROOT)


@asynccontextmanager
async def subject_of(deployment: Deployment, made: Made, run: str) -> AsyncIterator[Subject]:
    """Open the subject of a deployment's checks, with its client's key."""
    account, stack = deployment.account, await deployment.stack()
    with running_issuer() as issuer:
        keys_at, issuer.url = f"{issuer.url}/keys", ISSUER
        ground = Emulated(
            account=account, stack=stack, tokens=issuer, deployment=deployment, keys_at=keys_at
        )
        url, key = deployment.door.url, await first_key(account, stack)
        async with Subject(
            endpoint=url, credential=key, made=made, run=run, ground=ground
        ) as subject:
            yield subject


@asynccontextmanager
async def beside(deployment: Deployment, name: str, **fields: Any) -> AsyncIterator[Deployment]:
    """Deploy another stack in the same account, and delete it at the end of the block.

    `fields` are those of its deployment that are others than the first one's.
    """
    folder = deployment.door.folder / name
    await asyncio.to_thread(folder.mkdir)
    build = fields.pop("build", deployment.build)
    async with opened(deployment.emulator, build, folder, free_port()) as door:
        other = Deployment(
            emulator=deployment.emulator, door=door, build=build, name=name, **fields
        )
        await other.deploy()
        yield other
        wrong = wrong_remains(await other.delete(deployment.made.values()))
        require(not wrong, f"of {name}: {'; '.join(wrong)}")


def wrong_remains(kept: Mapping[str, str]) -> list[str]:
    """Return what is wrong about what a deleted stack has left, by logical and physical ids."""
    more = sorted(kept.keys() - KEPT - {MADE_AGAIN})
    return [f"LOST, though it should remain: {name}" for name in sorted(KEPT - kept.keys())] + [
        f"REMAINS, though it should not: {name} {kept[name]}" for name in more
    ]


@dataclass
class Patient:
    """A client that asks again until it is answered, whatever becomes of the processes."""

    subject: Subject
    unanswered: int = 0
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def sent(self, message: Mapping[str, Any]) -> str:
        """Send a message until it is taken; return its task, one however often it is sent."""
        configuration = {"returnImmediately": True}
        params = {"message": dict(message), "configuration": configuration}
        return str((await self._asked("SendMessage", params))["id"])

    async def ended(self, task_id: str, *states: str, cancels: bool = False) -> dict[str, Any]:
        """Wait for a task's end or one of the states; ask for a cancel each time if `cancels`."""
        first = "CancelTask" if cancels else ""
        return await self._asked("GetTask", {"id": task_id}, ENDS | {*states}, first)

    async def _asked(
        self, method: str, params: Mapping[str, Any], states: Collection[str] = (), first: str = ""
    ) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            try:
                async with self._places:
                    if first:
                        await self.subject.agent.call(first, params)
                    task = (await self.subject.agent.call(method, params)).task
                return task if task["id"] and (not states or state(task) in states) else None
            except UNANSWERED:
                self.unanswered += 1
                return None

        what = f"{method} {params.get('id', '')}"
        return await self.subject.until(what, look, within_s=LONGEST_S, every_s=2)
