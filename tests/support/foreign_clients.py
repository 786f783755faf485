"""Official clients that run in a process of their own: of JavaScript, and of older versions."""

import asyncio
import hashlib
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.required import ROOT, python_of, report_not_run

JAVASCRIPT = ROOT / "tests" / "javascript"
PACKAGE = (
    *("package.json", "package-lock.json", ".npmrc", "shared.mjs", "server.mjs"),
    *("stream.mjs", "stream-0.3.mjs", "operations.mjs", "operations-0.3.mjs"),
)
INSTALL_S = 120


def install_javascript(folder: Path) -> Path:
    """Have the JavaScript clients in `folder`, with their scripts, as the lock says."""
    modules = _installed()
    for name in PACKAGE:
        shutil.copy(JAVASCRIPT / name, folder)
    (folder / "node_modules").symlink_to(modules)
    return folder


def _installed() -> Path:
    """Return the packages of the lock, which are installed once for all runs."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        report_not_run("The JavaScript client needs Node.js 20 or later with npm.")
    lock = (JAVASCRIPT / "package-lock.json").read_bytes()
    kept = ROOT / "build" / f"javascript-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, "made")
            made.mkdir()
            _install(npm, made)
            with suppress(OSError):  # another process was quicker
                made.rename(kept)
    return kept / "node_modules"


def _install(npm: str, folder: Path) -> None:
    for name in PACKAGE:
        shutil.copy(JAVASCRIPT / name, folder)
    command = [npm, "ci", "--prefer-offline"]
    try:
        options: Any = {"capture_output": True, "text": True, "timeout": INSTALL_S}
        installed = subprocess.run(command, cwd=folder, check=False, **options)
    except subprocess.TimeoutExpired:
        report_not_run(f"npm did not install the JavaScript client within {INSTALL_S} s.")
    else:
        if installed.returncode != 0:
            report_not_run(f"npm cannot install the JavaScript client: {installed.stderr[-500:]}")


def python_client(environment: str) -> list[str]:
    """Return the command of the Python client in an environment of `tests/foreign`."""
    return [str(python_of(environment)), str(ROOT / "tests/foreign" / environment / "stream.py")]


async def told(
    command: Sequence[str], url: str, binding: str, operation: str, argument: str
) -> AsyncGenerator[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *(*command, url, binding, operation, argument),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async for line in process.stdout:
            yield json.loads(line)
        complaints = await process.stderr.read()
        assert await process.wait() == 0, complaints.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
