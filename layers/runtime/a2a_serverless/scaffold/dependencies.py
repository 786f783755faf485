"""An agent's packages: locked together with the layer's, and put into the worker's function.

Python looks into a function's own folder before the layer. So a package in both would replace the
layer's for the whole process; therefore the layer's packages are not packaged again. The agent's
requirements have to fit the layer's versions, with which the framework was tested.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.scaffold import uv
from a2a_serverless.scaffold.source import (
    AGENT_LOCK,
    LAYER_LOCK,
    REQUIREMENTS,
    WORKER_LOCK,
    source,
)

PACKAGE: Final = "a2a-serverless"
DEVELOPMENT: Final = "requirements/dev.in"
DEVELOPMENT_LOCK: Final = "requirements/dev.txt"

LAMBDA_PYTHON: Final = (3, 13)
LAMBDA_HAS: Final = ("boto3", "botocore", "s3transfer")
"""Packages of Lambda's Python runtime; they are packaged only if requirements.in names them."""

LIMIT_BYTES: Final = 262_144_000
"""The most unzipped bytes that Lambda takes for a function and its layers together: 250 MB."""
LAYER_BYTES: Final = 80_000_000
"""The part of `LIMIT_BYTES` that is kept for the layer; tests/artefact compares it with the built
layer."""

_LARGEST: Final = 3
_MARK: Final = "# a2a-serverless lock: "
_HASHED: Final = ("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header")


@dataclass(frozen=True)
class Asked:
    """A line of requirements.in."""

    requirement: Requirement
    line: int


class Dependencies:
    """The requirements of a project and their locks.

    Args:
        project: the project's folder.
        find_links: folders or pages of wheels besides the index and the project's own.
    """

    def __init__(self, project: Path, find_links: Sequence[str] = ()) -> None:
        self._project = project
        self._links = [part for link in find_links for part in ("--find-links", link)]

    def lock(self) -> None:
        """Write the locks of layer, external workers, agent and development anew.

        Raises:
            ConfigurationError: the requirements cannot be resolved; one sentence says what to
                change.
        """
        if not (self._project / "layers/runtime/a2a_serverless").is_dir():
            self._lock_framework()
        self._compare_with_layer()
        self._write(AGENT_LOCK, self._agent_lock())
        if (self._project / DEVELOPMENT).is_file():
            self._lock_development()

    def bundle(self, target: Path, *, python_version: str, python_platform: str) -> None:
        """Install the agent's packages, without those of the layer, into `target`.

        Raises:
            ConfigurationError: requirements.in does not fit the layer or is not what was locked,
                or a package has no wheel for Lambda.
        """
        self.check()
        lock = self._read(AGENT_LOCK)
        if "==" in lock:
            try:
                uv.run(
                    (
                        *("install", "--require-hashes", "--no-deps", "--only-binary", ":all:"),
                        *("--python-version", python_version, "--target", str(target)),
                        *("--python-platform", python_platform, "-r", AGENT_LOCK, *self._links),
                    ),
                    folder=self._project,
                )
            except uv.UvError as error:
                raise self._explained(error, f"Lambda ({python_platform})") from error

    def check(self) -> None:
        """Compare requirements.in with the layer's lock, and with what was locked.

        Raises:
            ConfigurationError: requirements.in does not fit; one sentence names both requirements.
        """
        self._compare_with_layer()
        if self._read(AGENT_LOCK).split("\n", 1)[0] != self._mark():
            self._agent_lock()  # names a conflict, which comes before an outdated lock
            raise ConfigurationError(
                f"{AGENT_LOCK} was not made from this {REQUIREMENTS} and {LAYER_LOCK}: run"
                f" `{PACKAGE} lock`."
            )

    def _compare_with_layer(self) -> None:
        for asked in self._asked():
            has = self._layer.get(canonicalize_name(asked.requirement.name))
            if has and not asked.requirement.specifier.contains(has, prereleases=True):
                raise self._conflict(f"{REQUIREMENTS}, line {asked.line},", asked.requirement)

    # -- locks -------------------------------------------------------------------------------

    def _lock_framework(self) -> None:
        """Write the framework's own, tested locks, and add the framework itself with its hash."""
        own = self._compile([f"{PACKAGE}=={__version__}"], "--no-deps")
        for lock in (LAYER_LOCK, WORKER_LOCK):
            self._write(lock, own + (source() / lock).read_text(encoding="utf-8"))
        self.__dict__.pop("_layer", None)

    def _agent_lock(self) -> str:
        requirements = [str(asked.requirement) for asked in self._asked()]
        if not requirements:
            return f"{self._mark()}\n"
        names = {canonicalize_name(asked.requirement.name) for asked in self._asked()}
        there = [] if names & set(LAMBDA_HAS) else LAMBDA_HAS
        left_out = [f"--no-emit-package={name}" for name in (*self._layer, *there)]
        return f"{self._mark()}\n{self._compile(requirements, *left_out)}"

    def _lock_development(self) -> None:
        development = [
            line
            for line in self._read(DEVELOPMENT).splitlines()
            if line.strip() and not line.startswith("#")
        ]
        asked = [str(asked.requirement) for asked in self._asked()]
        agent = uv.without_hashes(self._read(AGENT_LOCK))
        self._write(DEVELOPMENT_LOCK, self._compile([*development, *asked], constraints=agent))

    def _compile(
        self, requirements: Sequence[str], *options: str, constraints: Sequence[str] = ()
    ) -> str:
        """Resolve requirements together with the layer's versions; return a lock with hashes."""
        layer = [f"{name}=={version}" for name, version in self._layer.items()]
        with TemporaryDirectory() as folder:
            wanted, fixed, made = (Path(folder, name) for name in ("in", "constraints", "lock"))
            wanted.write_text("\n".join(requirements), encoding="utf-8")
            fixed.write_text("\n".join([*layer, *constraints]), encoding="utf-8")
            python = ".".join(map(str, min(sys.version_info[:2], LAMBDA_PYTHON)))
            try:
                uv.run(
                    (
                        *("compile", str(wanted), "-c", str(fixed), "-o", str(made)),
                        *("--universal", "--python-version", python, "--only-binary", ":all:"),
                        *(*_HASHED, *options, *self._links),
                    ),
                    folder=self._project,
                )
            except uv.UvError as error:
                raise self._explained(error, "any platform") from error
            return uv.with_hashes_of_files(made.read_text(encoding="utf-8"), self._folders())

    def _folders(self) -> list[Path]:
        """Return the folders of wheels; uv gives no hashes for wheels in folders."""
        own = self._project / uv.WHEELS
        return [own, *(Path(link) for link in self._links[1::2] if "://" not in link)]

    def _mark(self) -> str:
        """Return the first line of the agent's lock: a digest of the requirements behind it."""
        asked = sorted(str(asked.requirement) for asked in self._asked())
        layer = sorted(f"{name}=={version}" for name, version in self._layer.items())
        return _MARK + hashlib.sha256("\n".join([*asked, "", *layer]).encode()).hexdigest()

    # -- what was read -----------------------------------------------------------------------

    @cached_property
    def _layer(self) -> dict[str, str]:
        """Return the versions of the layer's packages by their names."""
        path = self._project / LAYER_LOCK
        if not path.is_file():
            path = source() / LAYER_LOCK
        text = path.read_text(encoding="utf-8")
        pins = (Requirement(line) for line in uv.without_hashes(text))
        return {
            canonicalize_name(pin.name): next(iter(pin.specifier)).version
            for pin in pins
            if canonicalize_name(pin.name) != PACKAGE
        }

    def _asked(self) -> Iterator[Asked]:
        for number, line in enumerate(self._read(REQUIREMENTS).splitlines(), 1):
            text = re.sub(r"(^|\s)#.*", "", line).strip()
            if not text:
                continue
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                requirement = None
            if requirement is None or requirement.url:
                raise ConfigurationError(
                    f"{REQUIREMENTS}, line {number}: {text!r} is not the name of a package: put a"
                    f" wheel of your own into {uv.WHEELS} and name its package here."
                )
            yield Asked(requirement, number)

    def _read(self, name: str) -> str:
        try:
            return (self._project / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _write(self, name: str, text: str) -> None:
        path = self._project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    # -- refusals ----------------------------------------------------------------------------

    def _explained(self, error: uv.UvError, platform: str) -> ConfigurationError:
        said = str(error)
        if conflict := uv.conflict_of(said, self._layer):
            return self._conflict(*conflict)
        if package := uv.package_without_wheel(said):
            return ConfigurationError(
                f"{package} has no wheel for {platform}: build one, for a package without compiled"
                f" code with `pip wheel --no-deps -w {uv.WHEELS} {package}`, and run"
                f" `{PACKAGE} lock`."
            )
        return ConfigurationError(f"The packages of {REQUIREMENTS} cannot be had: {said}")

    def _conflict(self, who: str, what: Requirement) -> ConfigurationError:
        has = self._layer[canonicalize_name(what.name)]
        return ConfigurationError(
            f"{who} asks for {what}, and the layer of {PACKAGE} {__version__} has"
            f" {canonicalize_name(what.name)}=={has}: one process has one of them, so choose"
            f" another version in {REQUIREMENTS}."
        )


def check_size(function: Path) -> None:
    """Compare a built function's size with the bytes that the layer leaves of Lambda's limit.

    Raises:
        ConfigurationError: the function is too large; one sentence names the largest packages.
    """
    sizes = {
        path.name: sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        for path in function.iterdir()
    }
    room = LIMIT_BYTES - LAYER_BYTES
    if sum(sizes.values()) <= room:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_LARGEST]
    shown = ", ".join(f"{name} {_mb(sizes[name])}" for name in largest)
    raise ConfigurationError(
        f"Agent and packages take {_mb(sum(sizes.values()))} and Lambda leaves {_mb(room)} beside"
        f" the layer ({shown}): leave something out of {REQUIREMENTS}."
    )


def _mb(size: int) -> str:
    return f"{size / 1_000_000:.0f} MB"
