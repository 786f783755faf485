"""`python -m tests.cloud`: this project deployed on an emulated AWS, checked, and deleted again.

Exit codes: 0 nothing failed, 1 a check failed or something remains, 2 it could not be deployed or
was refused, 130 it was interrupted. Whatever the end, all that was started has ended by then.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE
from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import (
    VERSION,
    check_port,
    check_version,
    free_port,
    started,
)
from a2a_serverless_tools.cloud.program import EXIT_INTERRUPTED, phase, say, until_signal
from a2a_serverless_tools.cloud.stack import PhaseError
from tests.cloud import checks as own
from tests.cloud.deployment import PYTHON, Deployment, build
from tests.cloud.own import subject_of, wrong_remains
from tests.cloud.updates import Emulated
from tests.live import report, runner
from tests.live.checks import CHECKS
from tests.live.findings import Check
from tests.live.forms import FORMS, in_form
from tests.live.made import Made
from tests.live.runner import Findings

PROGRAM: Final = "python -m tests.cloud"
FOLDER: Final = Path(__file__).parents[2] / "build" / "cloud"
CHECKS_S: Final = 5400.0
SHORT: Final = (
    "one-origin",
    "operations-1.0-jsonrpc",
    "stream-python",
    "files-1.0-rest",
    "cancel",
    "webhook",
    "role-refused",
    "follow-up",
    "dead-letter",
    "refused-calls",
    "substitutions",
    "traces",
    "commands",
    "restore-task",
    "cloud-up",
    "guided",
    "logs",
)
"""The checks of a run that has to be short."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return asyncio.run(until_signal(_checked(options)))
    except (ConfigurationError, PhaseError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_UNUSABLE


async def _checked(options: argparse.Namespace) -> int:
    """Deploy, check, delete."""
    names = _chosen(options)
    async with _deployed(options) as deployment:
        folder = FOLDER / "reports" / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        async with asyncio.timeout(CHECKS_S):
            found = await phase("checks", _check(deployment, names, folder))
        if found.interrupted:
            return EXIT_INTERRUPTED
        kept = await phase("sam delete", deployment.delete())
        say(f"remains: {', '.join(sorted(kept)) or 'nothing'}")
        wrong = wrong_remains(kept)
        for line in wrong:
            say(line)
        for finding in found.findings:
            if finding.outcome == "failed":
                say(f"FAILED: {finding.name}: {finding.says}")
        return 0 if found.is_well and not wrong else 1


async def _check(deployment: Deployment, names: set[str], folder: Path) -> Findings:
    found = Findings()
    ground = Emulated(deployment, found)
    *every, last = _every(deployment)
    forms = [in_form(form, ground, say, found) for form in FORMS if form.name in names]
    chosen = [check for check in every if check.name in names]
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    made = Made(folder / "made.txt")
    async with subject_of(deployment, made, uuid.uuid4().hex[:8]) as subject:
        await subject.card()
        await runner.run(subject, [*chosen, *forms, *[last] * (last.name in names)], say, found)
        say(f"report: {report.write(folder, subject, found)}")
    return found


def _every(deployment: Deployment) -> list[Check]:
    """Return all checks."""
    return [*CHECKS, *(check.on(deployment) for check in (*own.LONG, *own.CHECKS))]


def _chosen(options: argparse.Namespace) -> set[str]:
    """Return the names of the checks to run.

    Raises:
        ConfigurationError: there is no check of a name.
    """
    every = {check.name for check in CHECKS} | {check.name for check in own.CHECKS}
    every |= {form.name for form in FORMS}
    chosen = set(options.only or (SHORT if options.short else every))
    if unknown := chosen - every - {check.name for check in own.LONG}:
        raise ConfigurationError(f"There is no check {min(unknown)}: the page `cloud` names them.")
    return chosen


@asynccontextmanager
async def _deployed(options: argparse.Namespace) -> AsyncIterator[Deployment]:
    """Start the emulator, build and deploy; end all of it with the block."""
    ports = [options.port or free_port(), free_port()]
    check_port(ports[0])
    await check_version(PYTHON)
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=FOLDER))
    async with AsyncExitStack() as ending:
        ending.callback(_remove, folder, keeps=options.keep)
        emulator = await phase(
            f"ministack {VERSION}",
            ending.enter_async_context(started(folder, ports[1], PYTHON)),
        )
        await phase("sam build", build(folder / "build", live_agent=True))
        door = await ending.enter_async_context(
            opened(emulator, folder / "build", folder, ports[0])
        )
        deployment = Deployment(
            emulator=emulator, door=door, build=folder / "build", name=options.stack
        )
        await phase("sam deploy", deployment.deploy())
        yield deployment


def _remove(folder: Path, *, keeps: bool) -> None:
    if not keeps:
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--short", action="store_true", help="the checks that take no minutes")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="this check")
    parser.add_argument("--port", type=int, help="the agent's port (default: a free one)")
    parser.add_argument(
        "--stack", default="a2a-cloud", help="the stack's name (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the run's folder and its logs")
    return parser
