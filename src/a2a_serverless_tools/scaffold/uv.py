"""Calls of uv, which resolves and installs packages, and the locks that it writes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from a2a_serverless.errors import ConfigurationError

WHEELS = "functions/worker/wheels"
"""The folder of a project's own wheels, which is searched before any index."""


class UvError(ConfigurationError):
    """uv refused; the message is uv's own, in one line."""


def run(arguments: Sequence[str], *, folder: Path) -> None:
    """Run `uv pip ARGUMENTS` in a folder, with its own wheels and those of UV_FIND_LINKS.

    Raises:
        UvError: uv refused.
        ConfigurationError: there is no uv.
    """
    links = [WHEELS] if (folder / WHEELS).is_dir() else []
    links += filter(None, os.environ.get("UV_FIND_LINKS", "").split(","))
    wheels = [part for link in links for part in ("--find-links", link)]
    done = subprocess.run(  # noqa: S603 - uv, with the arguments of this module
        [_program(), "pip", arguments[0], "--quiet", *wheels, *arguments[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UvError(" ".join(done.stderr.split()).removeprefix("error: "))


def _program() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = os.environ.get("UV") or (str(beside) if beside.exists() else shutil.which("uv"))
    if found is None:
        raise ConfigurationError("uv is missing; install a2a-serverless[local].")
    return found


def without_hashes(lock: str) -> Sequence[str]:
    """Return the requirements of a lock: `NAME==VERSION` with its marker."""
    return re.findall(r"^([A-Za-z0-9][^\s]*==[^\\\n]*?)\s*\\?$", lock, re.MULTILINE)


def package_built_anew(lock: str, folder: Path) -> str | None:
    """Return the first package of a lock whose wheel in a folder is not the one that was locked.

    uv would not say so where it has the locked one in its cache.
    """
    locked = {pin.partition(" ")[0] for pin in without_hashes(lock)}
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        package = f"{canonicalize_name(name)}=={version}"
        if package in locked and hashlib.sha256(wheel.read_bytes()).hexdigest() not in lock:
            return package
    return None
