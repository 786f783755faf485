"""The upgrade of a project: three versions of each file, merged by `git merge-file`.

The files as the earlier version wrote them are in the project's hidden folder. Those of the new
version come from the package. The project's own files may be edited by the owner.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from packaging.version import Version

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.dependencies import LOCKS, PACKAGE, own_place
from a2a_serverless_tools.scaffold.project import BASE, OWNERS, Project, write

_MARKER: Final = b"<<<<<<< yours\n"
_MOST_CONFLICTS: Final = 127
"""`git merge-file` ends with the number of conflicts; a higher code is an error."""

Change = Literal["new", "updated", "merged", "conflict", "removed", "kept"]


@dataclass(frozen=True)
class Step:
    """What an upgrade does with one file; `content` is None if nothing is written."""

    name: str
    change: Change
    content: bytes | None = None
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.change:<9} {self.name}{self.remark and f': {self.remark}'}"


@dataclass(frozen=True)
class Upgrade:
    """A planned upgrade: the project as it will be recorded, and what changes."""

    folder: Path
    before: Project
    after: Project
    rendered: Mapping[str, bytes]
    steps: tuple[Step, ...]

    @property
    def conflicts(self) -> list[Step]:
        """Return the steps about which the owner has to decide."""
        return [step for step in self.steps if step.change == "conflict"]

    def apply(self) -> None:
        """Write the merged files, and record the files of the new version."""
        for step in self.steps:
            if step.change == "removed":
                (self.folder / step.name).unlink()
            elif step.content is not None:
                path = self.folder / step.name
                mode = path.stat().st_mode & 0o777 if path.is_file() else None
                write(self.folder, {step.name: step.content})
                if mode is not None:
                    path.chmod(mode)
        self.after.record(self.folder, self.rendered)


def plan(folder: Path, *, repository: Path | None = None, version: str = __version__) -> Upgrade:
    """Compare a project with the files that this version would write, and merge them in memory.

    Args:
        folder: the project's folder.
        repository: the framework's top level; None: that of this version.
        version: the framework's version.

    Raises:
        ConfigurationError: it is no project of `init`, or one of a newer version; a link leads out
            of it; a file has conflicts of an earlier upgrade; or there is no git.
    """
    before = Project.recorded_in(folder)
    if Version(before.version) > Version(version):
        raise ConfigurationError(
            f"The project is of {PACKAGE} {before.version}, and this is {version}: install"
            f" {before.version} or a later version, or use the project's own in .venv/bin."
        )
    after = replace(before, version=version)
    rendered = after.render(repository)
    names = sorted({*rendered, *_names(folder / BASE / "written")} - OWNERS)
    for name in (*names, *LOCKS, BASE):
        own_place(folder, name)
    open_conflicts = [name for name in names if _MARKER in _unix(_read(folder / name) or b"")]
    if open_conflicts:
        raise ConfigurationError(
            f"{', '.join(open_conflicts)} has places of the last upgrade that are marked with"
            " <<<<<<< and not decided: edit them first."
        )
    steps = (_step(folder, name, rendered.get(name)) for name in names)
    return Upgrade(folder, before, after, rendered, tuple(step for step in steps if step))


def _step(folder: Path, name: str, theirs: bytes | None) -> Step | None:
    """Return what becomes of one file; None: it stays as it is.

    Only lines count: a file with CR LF, of an editor or of git, keeps these.
    """
    base, own = _read(folder / BASE / "written" / name), _read(folder / name)
    step = _merged(name, base and _unix(base), own and _unix(own), theirs)
    if step and step.content and own and b"\r\n" in own:
        return replace(step, content=step.content.replace(b"\n", b"\r\n"))
    return step


def _merged(name: str, base: bytes | None, ours: bytes | None, theirs: bytes | None) -> Step | None:
    """Return what becomes of one file: as it was written, as it is, and as it is written now."""
    if theirs in (base, ours):
        return None
    if ours is None:
        if base is None:
            return Step(name, "new", theirs)
        return Step(name, "kept", remark="you have removed it, and the new version has changed it")
    if theirs is None:
        if ours == base:
            return Step(name, "removed")
        return Step(name, "kept", remark="the new version has it no more, and you have edited it")
    if ours == base:
        return Step(name, "updated", theirs)
    merged, conflicts = _merge(ours, base or b"", theirs)
    if conflicts:
        return Step(name, "conflict", merged, f"{conflicts} to decide, marked with <<<<<<<")
    return Step(name, "merged", merged)


def _merge(ours: bytes, base: bytes, theirs: bytes) -> tuple[bytes, int]:
    """Return the three-way merge and the number of its conflicts."""
    git = shutil.which("git")
    if git is None:
        raise ConfigurationError("git is missing: the merge of an upgrade is made by it.")
    with TemporaryDirectory() as scratch:
        paths = [Path(scratch, name) for name in ("yours", "written before", "new version")]
        for path, content in zip(paths, (ours, base, theirs), strict=True):
            path.write_bytes(content)
        labels = [part for path in paths for part in ("-L", path.name)]
        done = subprocess.run(  # noqa: S603 - git, on three files of this function
            [git, "merge-file", "--stdout", "--diff3", *labels, *map(str, paths)],
            capture_output=True,
            check=False,
        )
    if done.returncode > _MOST_CONFLICTS:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise ConfigurationError(f"git merge-file cannot merge: {reason}.")
    return done.stdout, done.returncode


def _unix(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def _names(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
