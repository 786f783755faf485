"""A stack on the emulator: built, deployed, updated and deleted by SAM, as its owner does it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from tests.artefact.build import PLATFORM
from tests.cloud import template
from tests.cloud.door import Door
from tests.cloud.emulator import REGION, ROOT, Emulator
from tests.live.account import Account
from tests.live.stack import Stack, read_stack

SAM: Final = ROOT / ".venv" / "tools" / "sam" / "bin" / "sam"
LIVE_AGENT: Final = ROOT / "tests" / "live"
BUILD_S: Final = 300.0
DEPLOY_S: Final = 420.0
DELETE_S: Final = 300.0
PARAMETERS: Final = {
    "WorkerTimeout": "60",
    "WorkerConcurrency": "4",  # each is a process, and takes seconds of CPU to start
    "Settings": "A2A_PUSH_ALLOWED_HOSTS=127.0.0.1,example.com",
}
KEPT: Final = frozenset({"TaskTable", "BlobBucket", "UndecodableQueue", "ApiKeys", "SigningSecret"})
"""What outlives a deleted stack, by logical ids."""
QUOTED: Final = '""'
MADE_AGAIN: Final = "FunctionLogs"
"""What the emulator may make again for the last lines of a function, which no role may on AWS."""


class PhaseError(Exception):
    """A step did not end well; the text says how, and shows what was said last."""


async def build(folder: Path, *, live_agent: bool, project: Path = ROOT) -> None:
    """Build a project for this machine into a folder; with the live checks' own agent if asked.

    Raises:
        PhaseError: it cannot be built.
    """
    variables = {"LAMBDA_PLATFORM": PLATFORM, "LAMBDA_PYTHON": "3.13"}
    command = ["make", "build", f"BUILD_ARGS=--build-dir {folder}"]
    if project == ROOT:
        command.insert(1, "--old-file=.venv/.stamp")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    await run(command, {**inherited, **variables}, within_s=BUILD_S, folder=project)
    if live_agent:
        for function, name in (
            ("WorkerFunction", "agent.py"),
            ("ApiFunction", "agent_card.json"),
            ("StreamFunction", "agent_card.json"),
        ):
            shutil.copy(LIVE_AGENT / name, folder / function / name)
        for bytecode in (folder / "WorkerFunction").glob("__pycache__/agent.*.pyc"):
            bytecode.unlink()  # it is valid whatever lies beside it


@dataclass(kw_only=True)
class Deployment:
    """A deployed stack and the door to it."""

    emulator: Emulator
    door: Door
    build: Path
    name: str
    parameters: dict[str, str] = field(default_factory=lambda: dict(PARAMETERS))
    made: dict[str, str] = field(default_factory=dict)
    """Each resource that was ever in the stack, by its logical id."""

    @property
    def account(self) -> Account:
        """The emulated account, with its root user's credentials."""
        return Account(REGION, **self.emulator.client())

    @property
    def template(self) -> Path:
        """The template as the emulator gets it."""
        return self.build / "cloud.json"

    async def deploy(self, **parameters: str) -> None:
        """Create or update the stack, with other parameters if given; show its API at the door.

        Raises:
            ConfigurationError: it failed; the text has the events that say why.
        """
        self.parameters.update(parameters)
        # SAM keeps what a stack has been given: an empty value has to be said, in quotes.
        given = [f"{name}={value or QUOTED}" for name, value in self.parameters.items()]
        template.write(self.build / "template.yaml", self.template, self.parameters)
        arguments = ["--template-file", str(self.template), "--resolve-s3"]
        arguments += ["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset"]
        try:
            await self._sam(
                "deploy", *arguments, "--parameter-overrides", *given, within_s=DEPLOY_S
            )
        except PhaseError as error:
            failed = await self._failed_events()
            msg = f"The deployment of {self.name} failed. {failed or error}"
            raise ConfigurationError(msg) from error
        stack = await self.stack()
        self.made.update(stack.resources)
        await self.door.show(stack.resources)

    @asynccontextmanager
    async def changed(self, **parameters: str) -> AsyncIterator[None]:
        """Update the stack to other parameters, and back after the block."""
        before = (await self.stack()).parameters
        back = {name: before[name] for name in parameters}
        try:
            await self.deploy(**parameters)
            yield
        except Exception:  # a cancel ends the run, and the stack with it
            await self.deploy(**back)
            raise
        await self.deploy(**back)

    def take(self, build: Path) -> None:
        """Deploy another build from now on."""
        self.build = self.door.build = build

    def processes(self, function: str) -> list[int]:
        """Return the ids of the processes that run a function, which its logical id names."""
        running = self.emulator.functions().items()
        ids = [pid for pid, physical in running if physical == self.made[function]]
        return ids + (self.door.processes if function == "StreamFunction" else [])

    async def session(self, role: str) -> tuple[str, str, str]:
        """Return credentials of a role: key, secret, token."""
        found = await self.account.call("iam", "get_role", RoleName=role)
        arn = found["Role"]["Arn"]
        issued = await self.account.call("sts", "assume_role", RoleArn=arn, RoleSessionName="check")
        given = issued["Credentials"]
        return given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]

    async def stack(self) -> Stack:
        """Read the stack as it is."""
        return await read_stack(self.account, self.name)

    async def delete(self, shared: Collection[str] = ()) -> dict[str, str]:
        """Delete the stack; return what remains of it, by logical id.

        `shared` are physical ids that another stack has, too, such as the name of a stage.

        Raises:
            PhaseError: SAM did not delete it.
        """
        await self._sam("delete", "--no-prompts", "--region", REGION, within_s=DELETE_S)
        present = await self._present()
        return {
            logical: physical
            for logical, physical in self.made.items()
            if {physical, physical.rpartition("/")[2]} & present and physical not in shared
        }

    async def _sam(self, command: str, *arguments: str, within_s: float) -> None:
        settings = self.build / "samconfig.toml"
        settings.write_text("version = 0.1\n", encoding="utf-8")  # the project's own asks questions
        environment = {**os.environ, **self.emulator.environment(), "SAM_CLI_TELEMETRY": "0"}
        stack = ["--stack-name", self.name, "--config-file", str(settings)]
        await run([str(SAM), command, *stack, *arguments], environment, within_s=within_s)

    async def _failed_events(self) -> str:
        try:
            events = await self.account.call(
                "cloudformation", "describe_stack_events", StackName=self.name
            )
        except ClientError:
            return ""
        return "; ".join(
            f"{it['LogicalResourceId']} {it['ResourceStatus']}: {it.get('ResourceStatusReason')}"
            for it in reversed(events["StackEvents"])
            if it["ResourceStatus"].endswith("_FAILED")
        )

    async def _present(self) -> set[str]:
        """Names and ids, and their last parts, of all that the account has of a stack's kinds."""
        names: set[str] = set()
        for service, operation, member in _LISTS:
            client = self.account.client(service)
            if client.can_paginate(operation):
                pages: Sequence[Mapping[str, Any]] = await asyncio.to_thread(
                    lambda: list(client.get_paginator(operation).paginate())  # noqa: B023 - awaited
                )
            else:
                pages = [await self.account.call(service, operation)]
            texts = [text for page in pages for text in _texts(page.get(member))]
            names.update(texts, (re.split("[/:]", text)[-1] for text in texts))
        return names


def _texts(value: Any) -> Iterator[str]:
    """Yield each text in the entries of a list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


_LISTS: Final = (
    ("dynamodb", "list_tables", "TableNames"),
    ("s3", "list_buckets", "Buckets"),
    ("sqs", "list_queues", "QueueUrls"),
    ("lambda", "list_functions", "Functions"),
    ("lambda", "list_layers", "Layers"),
    ("lambda", "list_event_source_mappings", "EventSourceMappings"),
    ("iam", "list_roles", "Roles"),
    ("iam", "list_policies", "Policies"),
    ("events", "list_rules", "Rules"),
    ("secretsmanager", "list_secrets", "SecretList"),
    ("apigateway", "get_rest_apis", "items"),
    ("cloudwatch", "describe_alarms", "MetricAlarms"),
    ("cloudwatch", "list_dashboards", "DashboardEntries"),
    ("logs", "describe_log_groups", "logGroups"),
)


async def run(
    command: Sequence[str], environment: Mapping[str, str], *, within_s: float, folder: Path = ROOT
) -> str:
    """Run a command with its children in a session of its own; return what it said.

    Raises:
        PhaseError: it failed, or did not end in time.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    )
    name = " ".join(
        Path(part).name if number == 0 else part for number, part in enumerate(command[:2])
    )
    try:
        async with asyncio.timeout(within_s):
            process = await asyncio.shield(starting)
            said = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError as error:
        raise PhaseError(f"{name} did not end within {within_s:g} s.") from error
    finally:
        process = await starting  # also where a cancel came before it had started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
    if process.returncode != 0:
        last = [line for line in said.splitlines() if line.strip()][-12:]
        raise PhaseError(f"{name} ended with {process.returncode}: " + "\n".join(last))
    return said
