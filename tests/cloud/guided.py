"""`sam deploy --guided` in a terminal, by Enter alone, to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Final

from a2a_serverless_tools.cloud import template
from a2a_serverless_tools.cloud.stack import DEPLOY_S, PhaseError
from tests.cloud.deployment import SAM, Deployment
from tests.cloud.own import wrong_remains
from tests.live.subject import Subject, require

PROMPT: Final = re.compile(r"([^\n\r]+?)(?: \[[^\n\r]*\])?: ?$")
COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TWICE: Final = 2


async def guided(deployment: Deployment, subject: Subject) -> None:
    """Deploy a stack of its own with all defaults, press Enter at each prompt, and delete it."""
    name = f"guided-{subject.run}"
    folder = deployment.door.folder / name
    await asyncio.to_thread(folder.mkdir)
    # Beside the other template, by which the functions' code is found.
    built = deployment.build / "guided.json"
    template.write(deployment.build / "template.yaml", built, {})
    command = [str(SAM), "deploy", "--guided", "--template-file", str(built)]
    environment = {**os.environ, **deployment.emulator.environment(), "SAM_CLI_TELEMETRY": "0"}
    asked = await asyncio.to_thread(
        _entered, [*command, "--stack-name", name, "--resolve-s3"], folder, environment
    )
    other = Deployment(
        emulator=deployment.emulator, door=deployment.door, build=deployment.build, name=name
    )
    stack = await other.stack()
    other.made.update(stack.resources)
    parameters = sum(prompt.startswith("Parameter ") for prompt in asked)
    require(parameters == len(stack.parameters), f"{parameters} of {len(stack.parameters)} asked")
    wrong = wrong_remains(await other.delete(deployment.made.values()))
    require(not wrong, f"of {name}: {'; '.join(wrong)}")


def _entered(command: list[str], folder: Path, environment: dict[str, str]) -> Counter[str]:
    """Run a command in a terminal, and press Enter at each prompt; return the prompts.

    Raises:
        PhaseError: a prompt came again, the command failed, or it did not end in time.
    """
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=side, stdout=side, stderr=side, process_group=0
    )
    os.close(side)
    asked, said, until = Counter[str](), "", time.monotonic() + DEPLOY_S
    try:
        while time.monotonic() < until and (more := _read(terminal)) is not None:
            said = (said + COLOURS.sub("", more))[-20_000:]
            if more and (found := PROMPT.search(said)):
                prompt = found[1].strip()
                asked[prompt] += 1
                if asked[prompt] == TWICE:
                    raise PhaseError(f"sam deploy --guided asks again: {prompt}")
                os.write(terminal, b"\r")
                said += "\n"
        if (code := process.wait(max(1, until - time.monotonic()))) != 0:
            raise PhaseError(f"sam deploy --guided ended with {code}: {said[-1500:]}")
    except subprocess.TimeoutExpired as error:
        raise PhaseError(f"sam deploy --guided did not end: {said[-1500:]}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)
    return asked


def _read(terminal: int) -> str | None:
    """Return what a terminal shows, empty where nothing comes; None: the program has ended."""
    if not select.select([terminal], [], [], 1.0)[0]:
        return ""
    try:
        return os.read(terminal, 65_536).decode(errors="replace") or None
    except OSError:
        return None
