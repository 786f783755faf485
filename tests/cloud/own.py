"""What the checks of a deployment on the emulator are made of."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import free_port
from a2a_serverless_tools.cloud.stack import run
from tests.cloud.deployment import KEPT, MADE_AGAIN, ROOT, Deployment
from tests.live.findings import Check, Figures, require
from tests.live.made import Made
from tests.live.stack import first_key
from tests.live.subject import Consent, Subject, state

SLACK: Final = 3
"""How many times as long as on AWS everything may take, on a busy machine of two cores."""
LONGEST_S: Final = 300.0
"""Without slack, how long a task may take whose processes are killed: a kill costs it 90 s."""
COMMAND_S: Final = 180.0
AT_ONCE: Final = 4
"""Requests at the same time: each is a process of a function."""
ENDS: Final = frozenset({"COMPLETED", "CANCELED", "FAILED", "REJECTED"})
UNANSWERED: Final = (httpx.HTTPError, ValueError, LookupError)
"""What a request ends in whose process was killed: no answer, or one of the gateway's own."""


@dataclass(frozen=True)
class Own:
    """A check of a deployment on the emulator; `on` one, it is a check like those of tests/live."""

    name: str
    proves: str
    run: Callable[[Deployment, Subject], Awaitable[Figures]]

    def on(self, deployment: Deployment) -> Check:
        """Return the check of this deployment."""
        return Check(self.name, self.proves, lambda subject: self.run(deployment, subject))


async def command(deployment: Deployment, *arguments: str) -> str:
    """Run a command of operators on the stack; return what it said."""
    at = ["--stack", deployment.name, "--region", "us-east-1"]
    whole = [str(ROOT / ".venv" / "bin" / "a2a-serverless"), *arguments, *at]
    environment = {**os.environ, **deployment.emulator.environment()}
    return await run(whole, environment, within_s=COMMAND_S, folder=ROOT)


@asynccontextmanager
async def subject_of(deployment: Deployment, made: Made, run: str) -> AsyncIterator[Subject]:
    """Open the subject of a deployment's checks, with its client's key."""
    stack = await deployment.stack()

    async def settle() -> None:
        await deployment.door.show((await deployment.stack()).resources)

    async with Subject(
        endpoint=deployment.door.url,
        credential=await first_key(deployment.account, stack),
        account=deployment.account,
        stack=stack,
        made=made,
        run=run,
        consent=Consent(changes=True),
        settle=settle,
        slack=SLACK,
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


async def alone(
    deployment: Deployment,
    subject: Subject,
    name: str,
    template: Mapping[str, Any],
    **parameters: str,
) -> str:
    """Make a stack of one resource; return its physical id, empty if it cannot be made."""
    call, stack = deployment.account.call, f"{name}-{subject.run}"
    subject.made.note(
        "stack", stack, lambda: call("cloudformation", "delete_stack", StackName=stack)
    )
    given = [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()]
    await call(
        "cloudformation",
        "create_stack",
        StackName=stack,
        TemplateBody=json.dumps(template, default=str),
        Parameters=given,
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )

    async def look() -> str | None:
        answer = await call("cloudformation", "describe_stacks", StackName=stack)
        status = str(answer["Stacks"][0]["StackStatus"])
        return None if status in {"CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"} else status

    if await subject.until(stack, look, within_s=60, every_s=0.2) != "CREATE_COMPLETE":
        return ""
    listed = await call("cloudformation", "list_stack_resources", StackName=stack)
    return str(listed["StackResourceSummaries"][0]["PhysicalResourceId"])


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
        self,
        method: str,
        params: Mapping[str, Any],
        states: Collection[str] = (),
        first: str = "",
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
