"""A tagged release of this project, out of git's history, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from a2a_serverless import __version__
from tests.e2e.commands import Running, environment, running_with

ROOT = Path(__file__).parents[2]
PACKAGES = ("layers/runtime/a2a_serverless", "src/a2a_serverless_tools")
REQUIREMENTS = "requirements/local.txt"

VARIABLE = "A2A_UPGRADE_FROM"
EARLIER = "0.1.9"
"""The version of what is upgraded where no release is named or tagged."""


class NoReleaseError(Exception):
    """The release is not in this copy of the repository; the message says what would bring it."""


@dataclass(frozen=True)
class Release:
    """One release: its name in git, the folder of its package, a Python with what it needs."""

    name: str
    folder: Path
    python: Path

    @contextmanager
    def running(self, *arguments: str, given: Mapping[str, str], output: Path) -> Iterator[Running]:
        path = os.pathsep.join([*(str((self.folder / one).parent) for one in PACKAGES), str(ROOT)])
        # The bytecode has a folder of its own, so that the second process starts in half the time.
        cache = {"PYTHONPYCACHEPREFIX": str(self.folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
        env = environment(**given) | {"PYTHONPATH": path} | cache
        with running_with(self.python, *arguments, env=env, output=output) as process:
            yield process


def last_release() -> str:
    """What git calls the last release before this version; empty: there is none.

    That is what `A2A_UPGRADE_FROM` names, else the last tag before this commit.
    """
    return os.environ.get(VARIABLE) or _last_tag()


def unpack(name: str, folder: Path) -> Release:
    """Unpack a release into `folder`, with what it depends on; `name` is git's."""
    unpack_files(name, folder, *PACKAGES, REQUIREMENTS)
    return Release(name, folder, _environment(folder))


def make_earlier(folder: Path) -> None:
    """Give the source in a folder, which has this version, an earlier one."""
    for name in ("pyproject.toml", "layers/runtime/a2a_serverless/__init__.py"):
        path = folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(f'"{__version__}"') == 1, name
        path.write_text(text.replace(f'"{__version__}"', f'"{EARLIER}"'), encoding="utf-8")


def unpack_files(name: str, folder: Path, *paths: str) -> None:
    """Unpack files of a commit into `folder`, by default all of them."""
    try:
        archive = _git("archive", "--format=tar", name, *paths)
    except OSError as error:
        raise NoReleaseError(f"There is no git to read {name} with.") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        msg = f"{name} cannot be read, perhaps for want of `git fetch --unshallow --tags`: {said}"
        raise NoReleaseError(msg) from error
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def _environment(folder: Path) -> Path:
    uv, environment = Path(sys.prefix, "bin", "uv"), folder / "venv"
    python, requirements = environment / "bin" / "python", folder / REQUIREMENTS
    for arguments in (
        ["venv", "--quiet", "--python", sys.executable, str(environment)],
        ["pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(requirements)],
    ):
        subprocess.run([uv, *arguments], check=True)
    return python


def _last_tag() -> str:
    """The last tag before this commit; empty when there is none."""
    try:
        return _git("describe", "--tags", "--abbrev=0", "HEAD^").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> bytes:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)  # noqa: S607
    return ran.stdout
