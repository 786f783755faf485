"""A project's stack on the emulator, built and deployed by SAM, as its owner does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cloud import template
from a2a_serverless_tools.cloud.door import Door
from a2a_serverless_tools.cloud.emulator import REGION, Emulator

PLATFORM: Final = f"{platform.machine()}-manylinux2014"
"""The packages' platform: that of this machine, which runs the functions."""
BUILD_S: Final = 300.0
DEPLOY_S: Final = 420.0
PARAMETERS: Final = {
    "WorkerTimeout": "60",
    "WorkerConcurrency": "4",  # each is a process, and takes seconds of CPU to start
    "Settings": "A2A_PUSH_ALLOWED_HOSTS=127.0.0.1,example.com",
}
QUOTED: Final = '""'


class PhaseError(Exception):
    """A step did not end well; the text says how, and shows what was said last."""


async def build(folder: Path, project: Path, *options: str) -> None:
    """Build a project for this machine into a folder, by `make build` with these options of make.

    Raises:
        PhaseError: it cannot be built.
    """
    command = ["make", *options, "build", f"BUILD_ARGS=--build-dir {folder}"]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    variables = {"LAMBDA_PLATFORM": PLATFORM, "LAMBDA_PYTHON": "3.13"}
    await run(command, {**inherited, **variables}, within_s=BUILD_S, folder=project)


@dataclass(kw_only=True)
class Deployed:
    """A stack that SAM deploys out of a build, and the door to it."""

    emulator: Emulator
    door: Door
    sam: Path
    build: Path
    name: str
    parameters: dict[str, str] = field(default_factory=lambda: dict(PARAMETERS))

    @property
    def template(self) -> Path:
        """Return the path of the template that the emulator gets."""
        return self.build / "cloud.json"

    def client(self, service: str) -> Any:
        """Return a client with the root user's credentials."""
        return boto3.client(service, REGION, **self.emulator.client())

    async def deploy(self, **parameters: str) -> None:
        """Create or update the stack, with other parameters if given; show its API at the door.

        Raises:
            ConfigurationError: it failed; the text has the events that say why.
        """
        self.parameters.update(parameters)
        # SAM keeps what a stack has been given: an empty value has to be said, in quotes.
        given = [f"{name}={value or QUOTED}" for name, value in self.parameters.items()]
        paths = [self.build / "template.yaml", self.template, json.dumps(self.parameters)]
        substitutes = [self.emulator.python, "-P", template.__file__, *paths]
        arguments = ["--template-file", str(self.template), "--resolve-s3"]
        arguments += ["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset"]
        try:
            await run([*map(str, substitutes)], {}, within_s=DEPLOY_S, folder=self.build)
            await self.run_sam(
                "deploy", *arguments, "--parameter-overrides", *given, within_s=DEPLOY_S
            )
        except PhaseError as error:
            failed = await asyncio.to_thread(self._failed_events)
            msg = f"The deployment of {self.name} failed. {failed or error}"
            raise ConfigurationError(msg) from error
        await self.door.show(await asyncio.to_thread(self.resources))

    def resources(self) -> dict[str, str]:
        """Return the stack's physical ids by logical ones."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources")
        return {
            one["LogicalResourceId"]: one.get("PhysicalResourceId", "")
            for page in pages.paginate(StackName=self.name)
            for one in page["StackResourceSummaries"]
        }

    def first_key(self) -> str:
        """Return a key of the stack's clients, from its secret."""
        secrets = self.client("secretsmanager")
        answer = secrets.get_secret_value(SecretId=self.resources()["ApiKeys"])
        key: str = next(iter(json.loads(answer["SecretString"]).values()))
        return key

    async def run_sam(self, command: str, *arguments: str, within_s: float) -> None:
        """Run a command of SAM on the stack, without the project's settings, which ask questions.

        Raises:
            PhaseError: it failed, or did not end in time.
        """
        settings = self.build / "samconfig.toml"
        settings.write_text("version = 0.1\n", encoding="utf-8")
        environment = {**os.environ, **self.emulator.environment(), "SAM_CLI_TELEMETRY": "0"}
        stack = ["--stack-name", self.name, "--config-file", str(settings)]
        whole = [str(self.sam), command, *stack, *arguments]
        await run(whole, environment, within_s=within_s, folder=self.build)

    def _failed_events(self) -> str:
        try:
            events = self.client("cloudformation").describe_stack_events(StackName=self.name)
        except ClientError:
            return ""
        return "; ".join(
            f"{it['LogicalResourceId']} {it['ResourceStatus']}: {it.get('ResourceStatusReason')}"
            for it in reversed(events["StackEvents"])
            if it["ResourceStatus"].endswith("_FAILED")
        )


async def run(
    command: Sequence[str], environment: Mapping[str, str], *, within_s: float, folder: Path
) -> str:
    """Run a command with its children in a session of its own; return what it said.

    Raises:
        PhaseError: it failed, or did not end in time.
    """
    # Not a pipe: a grandchild that outlives the command would keep it open.
    with tempfile.TemporaryFile() as output:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
        name = " ".join([Path(command[0]).name, *command[1:2]])
        try:
            async with asyncio.timeout(within_s):
                process = await asyncio.shield(starting)
                await process.wait()
        except TimeoutError as error:
            raise PhaseError(f"{name} did not end within {within_s:g} s.") from error
        finally:
            process = await starting  # also where a cancel came before it had started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    if process.returncode != 0:
        last = [line for line in said.splitlines() if line.strip()][-12:]
        raise PhaseError(f"{name} ended with {process.returncode}: " + "\n".join(last))
    return said
