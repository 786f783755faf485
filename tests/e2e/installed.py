"""The package as a user has it: built, installed, and away from this repository."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
LIMIT_S = 900.0

_OURS = ("A2A_", "AWS_", "MAKE", "MFLAGS", "PYTHON", "UV_FIND", "VIRTUAL_ENV")


def environment(**variables: str) -> dict[str, str]:
    """The machine's variables without those of this repository, a project or an account."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    return {**inherited, "UV_PYTHON_DOWNLOADS": "never", **variables}


def run(command: Sequence[object], *, cwd: Path, **variables: str) -> str:
    """Run a command that has to succeed; return what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"
    return done.stdout


def built(folder: Path, source: Path = ROOT) -> Path:
    """Build source archive and wheel, the wheel out of the archive; return the wheel."""
    run([UV, "build", "--quiet", "--python", sys.executable, "-o", folder], cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path, python: str = sys.executable) -> Path:
    """Install the wheel with its extra `local` into a new environment; return its programs."""
    run([UV, "venv", "--quiet", "--python", python, folder], cwd=folder.parent)
    packages = [f"a2a-serverless[local] @ {wheel.as_uri()}"]
    pip = [UV, "pip", "install", "--quiet", "--python", folder / "bin/python"]
    run([*pip, *packages], cwd=folder.parent)
    return folder / "bin"


def pythons() -> list[str]:
    """The interpreters of this machine that the package is made for, one of each version.

    Those of pyenv are looked for in its folder: its programs on the path may run nothing.
    """
    of_pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = []
    for version in ("3.11", "3.12", "3.13"):
        command = [str(UV), "python", "find", "--no-project", version]
        told = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        here = sorted(map(str, of_pyenv.glob(f"{version}.*/bin/python3")))
        found += ([told.stdout.strip()] if told.returncode == 0 else here)[-1:]
    return found


def this_machine() -> dict[str, str]:
    """The variables by which a build is for this machine, so that its result can be run."""
    name = f"{platform.machine().replace('arm64', 'aarch64')}-manylinux_2_34"
    if platform.system() == "Darwin":
        name = f"{platform.machine().replace('arm64', 'aarch64')}-apple-darwin"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"LAMBDA_PYTHON": version, "LAMBDA_PLATFORM": name}
