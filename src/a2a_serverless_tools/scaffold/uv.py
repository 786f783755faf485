"""Calls of uv, which resolves and installs packages; translates its refusals for a project."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from a2a_serverless.errors import ConfigurationError

WHEELS = "functions/worker/wheels"
"""The folder of a project's own wheels, which is searched before any index."""

_NEEDS = re.compile(r"(?P<who>[A-Za-z0-9._-]+\S*) depends? on (?P<what>[^\s]+)")
_NO_WHEEL = re.compile(
    r"(?P<package>[A-Za-z0-9._-]+)(?:==(?P<version>\S+))? has no (?:usable )?wheels"
)
_NEWER_PYTHON = re.compile(
    r"(?P<package>[A-Za-z0-9._-]+)(?:[=<>!~]\S*)? requires? Python >=(?P<python>3\.\d+)"
)
_OTHER_CONTENT = re.compile(r"[Hh]ash mismatch for `(?P<package>[^`]+)`")
_UNHASHED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)[^\\\n]*$", re.MULTILINE)


class UvError(ConfigurationError):
    """uv refused; the message is uv's own, in one line."""


def run(arguments: Sequence[str], *, folder: Path) -> None:
    """Run `uv pip ARGUMENTS` in a folder, with its own wheels and those of UV_FIND_LINKS.

    Raises:
        UvError: uv refused.
        ConfigurationError: there is no uv.
    """
    links = [*([WHEELS] if (folder / WHEELS).is_dir() else []), *links_of_environment()]
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


def conflict_of(said: str, pins: Mapping[str, str]) -> tuple[str, Requirement] | None:
    """Return a package, and its requirement that excludes a version in `pins`; None without one.

    Args:
        said: the explanation of a failed resolution.
        pins: versions by package.
    """
    for who, what in _needs(said):
        version = pins.get(canonicalize_name(what.name))
        if version is not None and not what.specifier.contains(version, prereleases=True):
            return who, what
    return None


def _needs(said: str) -> Iterator[tuple[str, Requirement]]:
    for found in _NEEDS.finditer(said):
        try:
            yield found["who"], Requirement(found["what"].rstrip(",."))
        except InvalidRequirement:
            continue


def package_without_wheel(said: str) -> str | None:
    """Return the package, with its version if it is named, that has no wheel to install."""
    found = _NO_WHEEL.search(said)
    return found and "==".join(filter(None, (found["package"], found["version"])))


def package_for_newer_python(said: str) -> tuple[str, str] | None:
    """Return the package, and its oldest Python, that no lock for older ones can have."""
    found = _NEWER_PYTHON.search(said)
    return found and (found["package"], found["python"])


def package_of_other_content(said: str) -> str | None:
    """Return the package whose file has another hash than its lock."""
    found = _OTHER_CONTENT.search(said)
    return found and found["package"]


def links_of_environment() -> list[str]:
    """Return the folders and pages of wheels that uv takes from the environment."""
    return [link for link in os.environ.get("UV_FIND_LINKS", "").split(",") if link]


def folders_among(links: Iterable[str]) -> Iterator[Path]:
    """Yield the folders among links to wheels; pages of an index are left out."""
    for link in links:
        if link.startswith("file:"):
            yield Path(url2pathname(urlsplit(link).path))
        elif "://" not in link:
            yield Path(link)


def with_hashes_of_files(lock: str, folders: Iterable[Path]) -> str:
    """Return a lock in which also packages out of folders of wheels have their hashes."""
    files = _hashes_of_wheels(folders)

    def hashed(pin: re.Match[str]) -> str:
        hashes = files.get(f"{canonicalize_name(pin['name'])}=={pin['version']}", ())
        return " \\\n    ".join([pin[0], *(f"--hash={each}" for each in hashes)])

    return _UNHASHED.sub(hashed, lock)


def package_built_anew(lock: str, folder: Path) -> str | None:
    """Return the first package of a lock whose wheel in a folder is not the one that was locked.

    uv would not say so where it has the locked one in its cache.
    """
    locked = {pin.partition(" ")[0] for pin in without_hashes(lock)}
    found = _hashes_of_wheels([folder])
    return next((p for p in found if p in locked and any(h not in lock for h in found[p])), None)


def _hashes_of_wheels(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return `sha256:…` of each wheel in folders, by `NAME==VERSION`."""
    found: dict[str, list[str]] = {}
    for wheel in (path for folder in folders for path in sorted(folder.glob("*.whl"))):
        name, version = wheel.name.split("-")[:2]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        found.setdefault(f"{canonicalize_name(name)}=={version}", []).append(f"sha256:{digest}")
    return found


def without_hashes(lock: str) -> Sequence[str]:
    """Return the requirements of a lock: `NAME==VERSION` with its marker."""
    return re.findall(r"^([A-Za-z0-9][^\s]*==[^\\\n]*?)\s*\\?$", lock, re.MULTILINE)
