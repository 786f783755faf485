"""`python -m tests.cloud`: this project deployed on an emulated AWS, checked, and deleted again.

With --stack NAME --region REGION it is a stack of an AWS account, which is checked and stays.

Exit codes: 0 nothing failed, 1 a check failed or something remains, 2 it could not be deployed or
was refused, 130 it was interrupted. Whatever the end, all that was started has ended by then.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from botocore.exceptions import BotoCoreError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE
from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import VERSION, check_version, free_port, started
from a2a_serverless_tools.cloud.program import EXIT_INTERRUPTED, phase, say, until_signal
from a2a_serverless_tools.cloud.stack import PhaseError
from tests.cloud.checks import CHECKS
from tests.cloud.deployment import PYTHON, Deployment, build
from tests.cloud.own import subject_of, wrong_remains
from tests.live import runner
from tests.live.account import Account, first_key, read_stack
from tests.live.ground import Ground
from tests.live.runner import Findings
from tests.live.subject import Check, Made, Subject

PROGRAM: Final = "python -m tests.cloud"
FOLDER: Final = Path(__file__).parents[2] / "build" / "cloud"
CHECKS_S: Final = 5400.0
SHORT: Final = (
    *("one-origin", "operations-1.0-jsonrpc", "stream-python", "files-1.0-rest", "cancel"),
    *("webhook", "role-refused", "follow-up", "dead-letter", "refused-calls", "traces"),
    *("commands", "restore-task", "cloud-up", "guided", "logs"),
)
"""The checks of a run that has to be short."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        for check in CHECKS:
            say(f"{check.name:<22} {check.proves}")
        return 0
    try:
        checks = _chosen(options)
        runs = _on_emulator if options.region is None else _on_aws
        return asyncio.run(until_signal(runs(options, checks)))
    except (ConfigurationError, PhaseError, BotoCoreError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_UNUSABLE


async def _on_aws(options: argparse.Namespace, checks: Sequence[Check]) -> int:
    """Check a stack of the owner's account, with the credentials of the environment."""
    if not (options.stack and options.region):
        raise ConfigurationError("Name a stack and its region: make live STACK=NAME REGION=REGION.")
    account = Account(options.region)
    stack = await read_stack(account, options.stack)
    credential = os.environ.get("A2A_LIVE_CREDENTIAL") or await first_key(account, stack)
    ground = Ground(account=account, stack=stack, changes=options.allow_changes)
    made, run = Made(_notes()), uuid.uuid4().hex[:8]
    async with Subject(
        endpoint=stack.endpoint, credential=credential, made=made, run=run, ground=ground
    ) as subject:
        found = await _check(subject, checks)
    return EXIT_INTERRUPTED if found.interrupted else int(not found.is_well)


async def _on_emulator(options: argparse.Namespace, checks: Sequence[Check]) -> int:
    """Deploy, check, delete."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    async with _deployed(options) as deployment:
        made = Made(_notes())
        async with (
            asyncio.timeout(CHECKS_S),
            subject_of(deployment, made, uuid.uuid4().hex[:8]) as subject,
        ):
            found = await phase("checks", _check(subject, checks))
        if found.interrupted:
            return EXIT_INTERRUPTED
        kept = await phase("sam delete", deployment.delete())
        say(f"remains: {', '.join(sorted(kept)) or 'nothing'}")
        wrong = wrong_remains(kept)
        for line in wrong:
            say(line)
        return 0 if found.is_well and not wrong else 1


async def _check(subject: Subject, checks: Sequence[Check]) -> Findings:
    """Run the checks, and say what failed and what remains."""
    await subject.card()
    found = await runner.run(subject, checks)
    for line in found.remains:
        say(f"REMAINS, remove it yourself: {line}")
    for finding in found.findings:
        if finding.outcome == "failed":
            say(f"FAILED: {finding.name}: {finding.says}")
    return found


def _notes() -> Path:
    """Return where this run notes what it makes."""
    folder = FOLDER / "runs" / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "made.txt"


def _chosen(options: argparse.Namespace) -> list[Check]:
    """Return the checks to run, in their order.

    Raises:
        ConfigurationError: there is no check of a name.
    """
    names = {*options.only} or {*(SHORT if options.short else (it.name for it in CHECKS))}
    if unknown := names - {check.name for check in CHECKS}:
        raise ConfigurationError(f"There is no check {min(unknown)}: see --list.")
    return [check for check in CHECKS if check.name in names]


@asynccontextmanager
async def _deployed(options: argparse.Namespace) -> AsyncIterator[Deployment]:
    """Start the emulator, build and deploy; end all of it with the block."""
    ports = [free_port(), free_port()]
    await check_version(PYTHON)
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=FOLDER))
    async with AsyncExitStack() as ending:
        if not options.keep:
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
        starting = ending.enter_async_context(started(folder, ports[1], PYTHON))
        emulator = await phase(f"ministack {VERSION}", starting)
        await phase("sam build", build(folder / "build", live_agent=True))
        built = folder / "build"
        door = await ending.enter_async_context(opened(emulator, built, folder, ports[0]))
        deployment = Deployment(emulator=emulator, door=door, build=built, name=options.stack)
        await phase("sam deploy", deployment.deploy())
        yield deployment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="list the checks, and run none")
    add("--short", action="store_true", help="the checks that take no minutes")
    add("--only", action="append", default=[], metavar="CHECK", help="this check")
    add("--stack", default="a2a-cloud", help="the stack's name (default: %(default)s)")
    add("--keep", action="store_true", help="on the emulator: keep the run's folder and its logs")
    add("--region", help="on AWS: the stack's region")
    add("--allow-changes", action="store_true", help="on AWS: change the stack, and change it back")
    return parser
