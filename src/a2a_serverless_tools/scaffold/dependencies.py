"""An agent's packages: locked together with the layer's, and put into the worker's function.

Python looks into a function's own folder before the layer. So a package in both would replace the
layer's for the whole process; therefore the layer's packages are not packaged again. The agent's
requirements have to fit the layer's versions, with which the framework was tested.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.sizes import check_wheels
from a2a_serverless_tools.scaffold.source import (
    AGENT_LOCK,
    LAYER_LOCK,
    REQUIREMENTS,
    WORKER_LOCK,
    source,
)

PACKAGE: Final = "a2a-serverless"
DEVELOPMENT: Final = "requirements/dev.in"
DEVELOPMENT_LOCK: Final = "requirements/dev.txt"
LOCKS: Final = (LAYER_LOCK, WORKER_LOCK, AGENT_LOCK, DEVELOPMENT_LOCK)

_WHEELS: Final = "functions/worker/wheels"
"""The folder of a project's own wheels, which is searched before any index."""
LOCAL: Final = "local.mk"
"""The project's settings of this machine alone."""
LAMBDA_PYTHON: Final = "3.13"
LAMBDA_PLATFORM: Final = "aarch64-manylinux_2_34"
"""Lambda's machine, as uv names it."""
_OLDEST_PYTHON: Final = "3.11"
"""Each lock is for every Python from this one on, whichever made it."""
_LAMBDA: Final[Mapping[str, str]] = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.13.0",
    "python_version": "3.13",
    "sys_platform": "linux",
}
"""What markers of requirements, such as `python_version < "3.13"`, see of a function."""
_ANYWHERE: Final = "a2a-sdk"
"""A package of the layer, and of each environment with the framework."""
_LAMBDA_HAS: Final = ("boto3", "botocore", "s3transfer", "python-dateutil", "six")
"""boto3 and what it needs and the layer lacks: packages of Lambda's Python, and of the external
worker's image. They are packaged only if requirements.in names one of them."""

_MARK: Final = "# a2a-serverless lock: "
_UNIVERSAL: Final = ("--universal", "--python-version", _OLDEST_PYTHON)
_WHEELS_ALONE: Final = ("--only-binary", ":all:")
_HASHED: Final = ("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header")

# What uv says of a failure.
_NEEDS: Final = re.compile(r"(?P<who>[A-Za-z0-9._-]+\S*) depends? on (?P<what>[^\s]+)")
_NO_WHEEL: Final = re.compile(r"(?P<package>[A-Za-z0-9._-]+(?:==\S+)?) has no (?:usable )?wheels")
_NEWER_PYTHON: Final = re.compile(
    r"(?P<package>[A-Za-z0-9._-]+)(?:[=<>!~]\S*)? requires? Python >=(?P<python>3\.\d+)"
)
_SPLIT: Final = re.compile(
    r"for split \(markers: [^)]*?python_full_version >= '(?P<python>3\.\d+)'"
)
_REMEMBERED: Final = re.compile(r"^WHEELS\s*[:?+]?=[^\S\n]*([^#\n]*)", re.MULTILINE)
"""The line of local.mk with the folders or pages of wheels of this machine."""
_OTHER_CONTENT: Final = re.compile(r"[Hh]ash mismatch for `(?P<package>[^`]+)`")


class _NoSolutionError(ConfigurationError):
    """uv has found no solution from `python` on; empty: for any."""

    def __init__(self, message: str, python: str) -> None:
        super().__init__(message)
        self.python = python


class Dependencies:
    """The requirements of a project and their locks.

    Args:
        project: its folder.
        find_links: folders or pages of wheels beside the index, the project's own, and those that
            its local.mk names; folders are named from the current one.
    """

    def __init__(self, project: Path, find_links: Sequence[str] = ()) -> None:
        self._project = project
        given = [_for_make(absolute(link)) for link in find_links]
        known = [link for line in _REMEMBERED.findall(self._read(LOCAL)) for link in line.split()]
        self._new = [link for link in given if link not in known]
        self._links = [part for link in (*given, *known) for part in ("--find-links", link)]

    def lock(self) -> None:
        """Write the locks of layer, external workers, agent and development anew.

        local.mk gets the folders that it does not name yet, for `make` and later calls.

        Raises:
            ConfigurationError: they cannot be resolved, or the project is of another version than
                this one; one sentence says what to change.
        """
        if not (self._project / "layers/runtime/a2a_serverless").is_dir():  # the framework itself
            self._check_version()
            self._lock_framework()
        self._compare_with_layer()
        lock = self._agent_lock()
        self._check_wheels(lock)
        self._write(AGENT_LOCK, lock)
        if (self._project / DEVELOPMENT).is_file():
            self._lock_development()
        if self._new:
            with (self._project / LOCAL).open("a", encoding="utf-8") as local:
                local.write(f"WHEELS += {' '.join(self._new)}\n")

    def are_of_this_version(self) -> bool:
        """Return True if the locks of a project name this version of the framework."""
        locks = map(self._read, (LAYER_LOCK, WORKER_LOCK, DEVELOPMENT_LOCK))
        return all(f"{PACKAGE}=={__version__}" in _without_hashes(lock) for lock in locks)

    def bundle(self, target: Path, *, python_version: str, python_platform: str) -> None:
        """Install the agent's packages, without those of the layer, into `target`.

        Raises:
            ConfigurationError: requirements.in does not fit the layer or is not what was locked,
                or a package has no wheel for Lambda.
        """
        self.check()
        lock = self._read(AGENT_LOCK)
        if "==" in lock:
            self._run_uv(
                f"Lambda ({python_platform})",
                *("install", "--require-hashes", "--no-deps", *_WHEELS_ALONE, "-r", AGENT_LOCK),
                *("--python-version", python_version, "--python-platform", python_platform),
                *("--target", str(target)),
            )

    def check(self) -> None:
        """Compare requirements.in with the layer's lock, and with what was locked.

        Raises:
            ConfigurationError: it does not fit, and one sentence names both requirements; or it was
                not locked as it is now.
        """
        self._compare_with_layer()
        lock = self._read(AGENT_LOCK)
        if lock.split("\n", 1)[0] != self._mark():
            self._agent_lock()  # a conflict is named first
            raise ConfigurationError(
                f"{AGENT_LOCK} was not made from this {REQUIREMENTS} and {LAYER_LOCK}: run"
                f" `{PACKAGE} lock`."
            )
        if package := _package_built_anew(lock, self._project / _WHEELS):
            raise _built_anew(package)

    def _compare_with_layer(self) -> None:
        for line, asked in self._asked():
            if _is_for_lambda(asked) and self._excludes_the_layer(asked):
                raise self._conflict(f"{REQUIREMENTS}, line {line},", asked)

    def _check_version(self) -> None:
        """Refuse to test one version of the framework, and to deploy another."""
        for line in self._read(DEVELOPMENT).splitlines():
            asked = _parsed(line)
            if asked is None or canonicalize_name(asked.name) != PACKAGE:
                continue
            if not asked.specifier.contains(__version__, prereleases=True):
                raise ConfigurationError(
                    f"{DEVELOPMENT} names {asked}, and this is {PACKAGE} {__version__}: run"
                    f" `make lock`, which takes the project's own, or `{PACKAGE} upgrade`."
                )

    # -- locks -------------------------------------------------------------------------------

    def _lock_framework(self) -> None:
        """Write the framework's own, tested locks, and add the framework itself with its hash."""
        tested = {name: (source() / name).read_text("utf-8") for name in (LAYER_LOCK, WORKER_LOCK)}
        self._layer = _on_lambda(tested[LAYER_LOCK])
        locked = [pin.name for pin in _pins(tested[LAYER_LOCK])]
        own = self._compile([f"{PACKAGE}=={__version__}"], *_without(locked))
        for name, lock in tested.items():
            self._write(name, own + lock)

    def _agent_lock(self) -> str:
        requirements = self._wanted()
        if not requirements:
            return f"{self._mark()}\n"
        names = {canonicalize_name(asked.name) for _, asked in self._asked()}
        there = () if names & set(_LAMBDA_HAS) else _LAMBDA_HAS
        left_out = _without((PACKAGE, *self._layer, *there))
        return f"{self._mark()}\n{self._compile([], *left_out, agents=requirements)}"

    def _check_wheels(self, lock: str) -> None:
        """Refuse packages that are too large for Lambda.

        Raises:
            ConfigurationError: one sentence names the largest packages.
        """
        if "==" not in lock:
            return
        forms = ("--no-deps", "--no-header", "--format", "pylock.toml", *_WHEELS_ALONE)
        place = ("--python-version", LAMBDA_PYTHON, "--python-platform", LAMBDA_PLATFORM)
        own = ("--python", sys.executable)  # or uv looks for one of Lambda's version, or gets it
        try:
            wheels = self._resolved("Lambda", "pylock.toml", lock, *forms, *place, *own)
        except ConfigurationError:
            return  # the build names it
        check_wheels(wheels)

    def _lock_development(self) -> None:
        development = [
            line
            for line in self._read(DEVELOPMENT).splitlines()
            if line.strip() and not line.startswith("#")
        ]
        asked = self._wanted()
        agent = _without_hashes(self._read(AGENT_LOCK))
        self._write(DEVELOPMENT_LOCK, self._compile(development, agents=asked, constraints=agent))

    def _compile(
        self,
        requirements: Sequence[str],
        *options: str,
        agents: Sequence[str] = (),
        constraints: Sequence[str] = (),
    ) -> str:
        """Resolve requirements beside the layer's versions; return a lock with hashes.

        Those of the agent are locked for older Pythons alone where a newer one than Lambda's leaves
        no solution: a package may need another version of the layer's there.
        """
        too_new, bounded = "", list(agents)
        while True:
            try:
                return self._compiled([*requirements, *bounded], options, constraints)
            except _NoSolutionError as error:
                if not agents or error.python in {"", too_new, LAMBDA_PYTHON}:
                    raise
                too_new = error.python
                # uv looks at these two apart, and leaves the agent's out of the newer one.
                both = [f'{_ANYWHERE} ; python_version {each} "{too_new}"' for each in ("<", ">=")]
                bounded = [*both, *(_before(too_new, each) for each in agents)]

    def _compiled(
        self, requirements: Sequence[str], options: Sequence[str], constraints: Sequence[str]
    ) -> str:
        layer = [f"{PACKAGE}=={__version__}"]
        layer += [f"{name}=={version}" for name, version in self._layer.items()]
        forms = (*_UNIVERSAL, *_WHEELS_ALONE, *_HASHED, *options)
        fixed = "\n".join([*layer, *constraints])
        asked = "\n".join(requirements)
        return self._resolved("any platform", "lock", asked, *forms, constraints=fixed)

    def _resolved(
        self, platform: str, form: str, requirements: str, *options: str, constraints: str = ""
    ) -> str:
        """Return what `uv pip compile` makes of requirements; `form` is the name of its file."""
        with TemporaryDirectory() as folder:
            wanted, fixed, made = (Path(folder, name) for name in ("in", "constraints", form))
            wanted.write_text(requirements, encoding="utf-8")
            fixed.write_text(constraints, encoding="utf-8")
            files = (str(wanted), "-c", str(fixed), "-o", str(made))
            self._run_uv(platform, "compile", *files, *options)
            return made.read_text(encoding="utf-8")

    def _run_uv(self, platform: str, command: str, *arguments: str) -> None:
        """Run `uv pip` with the project's own wheels, and with those of UV_FIND_LINKS.

        `platform` is what a package may have no wheel for.
        """
        links = [_WHEELS] if (self._project / _WHEELS).is_dir() else []
        links += filter(None, os.environ.get("UV_FIND_LINKS", "").split(","))
        wheels = [part for link in links for part in ("--find-links", link)]
        done = subprocess.run(  # noqa: S603 - uv, with the arguments of this class
            [_uv(), "pip", command, "--quiet", *wheels, *arguments, *self._links],
            cwd=self._project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = " ".join(done.stderr.split()).removeprefix("error: ")
            raise self._explained(said, platform)

    def _mark(self) -> str:
        """Return the first line of the agent's lock: a digest of the requirements behind it."""
        asked = sorted(str(asked) for _, asked in self._asked())
        layer = sorted(f"{name}=={version}" for name, version in self._layer.items())
        return _MARK + hashlib.sha256("\n".join([*asked, "", *layer]).encode()).hexdigest()

    # -- what was read -----------------------------------------------------------------------

    @cached_property
    def _layer(self) -> dict[str, str]:
        """The versions of the packages that the layer has on Lambda, by their names."""
        path = self._project / LAYER_LOCK
        if not path.is_file():
            path = source() / LAYER_LOCK
        return _on_lambda(path.read_text(encoding="utf-8"))

    def _excludes_the_layer(self, asked: Requirement) -> bool:
        """Return True if a requirement does not allow the version that the layer has."""
        has = self._layer.get(canonicalize_name(asked.name))
        return has is not None and not asked.specifier.contains(has, prereleases=True)

    def _wanted(self) -> list[str]:
        """Return what is resolved: a requirement of other machines may not fit the layer."""
        return [str(asked) for _, asked in self._asked() if _is_for_lambda(asked)]

    def _asked(self) -> Iterator[tuple[int, Requirement]]:
        """Yield the requirements with the numbers of their lines."""
        for number, line in enumerate(self._read(REQUIREMENTS).splitlines(), 1):
            text = _without_comment(line)
            if not text:
                continue
            requirement = _parsed(text)
            if requirement is None or requirement.url:
                raise ConfigurationError(
                    f"{REQUIREMENTS}, line {number}: {text!r} is not the name of a package: put a"
                    f" wheel of your own into {_WHEELS} and name its package here."
                )
            yield number, requirement

    def _read(self, name: str) -> str:
        try:
            return (self._project / name).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            return ""

    def _write(self, name: str, text: str) -> None:
        path = own_place(self._project, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    # -- refusals ----------------------------------------------------------------------------

    def _explained(self, said: str, platform: str) -> ConfigurationError:
        for needs in _NEEDS.finditer(said):
            what = _parsed(needs["what"].rstrip(",."))
            if what is not None and self._excludes_the_layer(what):
                return self._conflict(needs["who"], what)
        if found := _NO_WHEEL.search(said):
            package = found["package"]
            return ConfigurationError(
                f"{package} has no wheel for {platform}: build one, for a package without compiled"
                f" code with `pip wheel --no-deps -w {_WHEELS} {package}`, and run"
                f" `{PACKAGE} lock`."
            )
        if found := _NEWER_PYTHON.search(said):
            package, python = found["package"], found["python"]
            return ConfigurationError(
                f"{package} needs Python {python}, and locks are for {_OLDEST_PYTHON} and later:"
                f" give its line in {REQUIREMENTS}, or that of the package that asks for it, a"
                f' marker such as `{package}; python_version >= "{python}"`.'
            )
        if f"{PACKAGE} was not found" in said or f"no version of {PACKAGE}==" in said:
            return ConfigurationError(
                f"{PACKAGE} {__version__} is not in the index: name the folder of its wheel by"
                f" --find-links ({said.rstrip('.')})."
            )
        if found := _OTHER_CONTENT.search(said):
            return _built_anew(found["package"])
        newer = _SPLIT.search(said)
        return _NoSolutionError(
            f"The packages of {REQUIREMENTS} cannot be had: {said}",
            newer["python"] if newer else "",
        )

    def _conflict(self, who: str, what: Requirement) -> ConfigurationError:
        has = self._layer[canonicalize_name(what.name)]
        return ConfigurationError(
            f"{who} asks for {what}, and the layer of {PACKAGE} {__version__} has"
            f" {canonicalize_name(what.name)}=={has}: one process has one of them, so choose"
            f" another version in {REQUIREMENTS}."
        )


def _built_anew(package: str) -> ConfigurationError:
    return ConfigurationError(
        f"{package} is not the file that was locked: if you have built it anew, run"
        f" `{PACKAGE} lock`."
    )


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = os.environ.get("UV") or (str(beside) if beside.exists() else shutil.which("uv"))
    if found is None:
        raise ConfigurationError("uv is missing; install a2a-serverless[local].")
    return found


def _without_hashes(lock: str) -> Sequence[str]:
    """Return the requirements of a lock: `NAME==VERSION` with its marker."""
    return re.findall(r"^([A-Za-z0-9][^\s]*==[^\\\n]*?)\s*\\?$", lock, re.MULTILINE)


def _package_built_anew(lock: str, folder: Path) -> str | None:
    """Return the first package of a lock whose wheel in a folder is not the one that was locked.

    uv would not say so where it has the locked one in its cache.
    """
    locked = {pin.partition(" ")[0] for pin in _without_hashes(lock)}
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        package = f"{canonicalize_name(name)}=={version}"
        if package in locked and hashlib.sha256(wheel.read_bytes()).hexdigest() not in lock:
            return package
    return None


def own_place(project: Path, name: str) -> Path:
    """Return the place of a project's file that may be written.

    Raises:
        ConfigurationError: a link leads out of the project.
    """
    root, place = os.path.realpath(project), project
    for part in Path(name).parts:
        place /= part
        target = os.path.realpath(place)
        if os.path.commonpath([root, target]) != root:
            raise ConfigurationError(
                f"{place} leads out of the project, to {target}: replace the link by a file or a"
                " folder of the project's own."
            )
    return place


def _for_make(link: str) -> str:
    """Return a link as a word of a Makefile: a folder whose name has spaces, as a URL."""
    return Path(link).as_uri() if re.search(r"\s", link) else link


def absolute(link: str) -> str:
    """Return a folder or a page of wheels so that it can be found from any folder."""
    return link if "://" in link else str(Path(link).resolve())


def _without(packages: Iterable[str]) -> Iterator[str]:
    """Yield the options that leave packages out of a lock."""
    return (f"--no-emit-package={name}" for name in packages)


def _on_lambda(lock: str) -> dict[str, str]:
    """Return the versions of a lock that Lambda gets, without the framework, by package.

    A lock is for all interpreters: what only older ones need is not in the layer.
    """
    return {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in _pins(lock)
        if canonicalize_name(pin.name) != PACKAGE and _is_for_lambda(pin)
    }


def _pins(lock: str) -> Iterator[Requirement]:
    return map(Requirement, _without_hashes(lock))


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line).strip()


def _before(python: str, line: str) -> str:
    """Return a requirement for the interpreters before a version alone."""
    asked = Requirement(line)
    older = f'python_version < "{python}"'
    asked.marker = Marker(f"({asked.marker}) and {older}" if asked.marker else older)
    return str(asked)


def _parsed(line: str) -> Requirement | None:
    """Return the requirement of a line; None where it is none."""
    try:
        return Requirement(_without_comment(line))
    except InvalidRequirement:
        return None


def _is_for_lambda(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(_LAMBDA))
