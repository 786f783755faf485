"""The files of a project as this version writes them, and their upgrade by `git merge-file`.

An upgrade merges three versions of each file. The files as the earlier version wrote them are in
the project's hidden folder. Those of the new version come from the package. The project's own files
may be edited by the owner.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from packaging.version import Version

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.dependencies import (
    DEVELOPMENT,
    LOCKS,
    PACKAGE,
    Dependencies,
    own_place,
)
from a2a_serverless_tools.scaffold.pages import listed_pages
from a2a_serverless_tools.scaffold.source import (
    AGENT,
    AGENT_LOCK,
    CARD,
    PROJECT_FILES,
    REQUIREMENTS,
    files,
    source,
)

KINDS: Final[Mapping[str, str]] = {
    "worker": "",
    "executor": "echo_executor",
    "langgraph": "langgraph_agent",
    "pydantic-ai": "pydantic_ai_agent",
    "openai-agents": "openai_agents_agent",
    "strands": "strands_agent",
    "adk": "adk_agent",
}
"""The folder in examples/ with the agent that a project starts with; empty: functions/worker's."""

_ADAPTED: Final = KINDS.keys() - {"worker", "executor"}
"""The kinds whose agents have an adapter, which keeps a state of its conversations."""

BASE: Final = ".a2a-serverless"
"""The hidden folder of a project, with its files as `init` or `upgrade` has written them."""

_RECORD: Final = "project.json"
_WRITTEN: Final[Mapping[str, str]] = {
    "Makefile": "Makefile",
    "gitignore": ".gitignore",
    "deploy.yml": ".github/workflows/deploy.yml",
    "dev.in": DEVELOPMENT,
    "README.md": "README.md",
    "assistants.md": "AGENTS.md",
    "checks/conftest.py": "tests/conftest.py",
    "checks/test_agent.py": "tests/test_agent.py",
    "checks/test_endpoint.py": "tests/test_endpoint.py",
}
"""Files of a project that are not the repository's own, by their names in `written/`."""

OWNERS: Final = frozenset({AGENT, CARD, REQUIREMENTS, "README.md", "tests/test_agent.py"})
"""Files that the owner replaces: `init` writes them, and `upgrade` leaves them alone."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,109}")
"""A stack's name by CloudFormation's rule, short enough for names that add an ending to it."""
_NO_NAME: Final = (
    "is no name for a stack of AWS: it has 1 to 110 letters, digits and hyphens, and begins with a"
    " letter"
)

_MARKER: Final = b"<<<<<<< yours\n"
_MOST_CONFLICTS: Final = 127
"""`git merge-file` ends with the number of conflicts; a higher code is an error."""

_Change = Literal["new", "updated", "merged", "conflict", "removed", "kept"]


@dataclass(frozen=True)
class Project:
    """How a project was made: the kind of its first agent, and the name of its stack."""

    agent: str
    name: str
    version: str = __version__

    @classmethod
    def recorded_in(cls, folder: Path) -> Project:
        """Return the project that `record` has kept in a folder.

        Raises:
            ConfigurationError: nothing was kept there, it cannot be read, or `init` would refuse
                the name.
        """
        path = folder / BASE / _RECORD
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            Version(read["version"]), KINDS[read["agent"]]  # each raises for what is unknown
            made = cls(agent=read["agent"], name=read["name"], version=read["version"])
            is_name = bool(_NAME.fullmatch(made.name))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read: only a project that {PACKAGE} init has made, with its"
                f" folder {BASE}, can be upgraded."
            ) from error
        if not is_name:
            raise ConfigurationError(f"The name {made.name!r} in {path} {_NO_NAME}; correct it.")
        return made

    def render(self, repository: Path | None = None) -> dict[str, bytes]:
        """Return the project's files by their paths, without the locks.

        Args:
            repository: the framework's top level; None: that of this version.
        """
        root = repository or source()
        paths = {path.relative_to(root).as_posix(): path for path in files(root, PROJECT_FILES)}
        paths.pop(AGENT_LOCK, None)
        example = root / "examples" / KINDS[self.agent]
        if KINDS[self.agent]:
            paths |= {AGENT: example / "agent.py", CARD: example / "agent_card.json"}
            if (example / "requirements.txt").is_file():
                paths[REQUIREMENTS] = example / "requirements.txt"
        written = Path(__file__).parent / "written"
        paths |= {name: written / own for own, name in _WRITTEN.items()}
        rendered = {name: self._filled(name, path.read_bytes()) for name, path in paths.items()}
        return rendered | {"llms.txt": listed_pages(root).encode()}

    def _filled(self, name: str, content: bytes) -> bytes:
        if name == "samconfig.toml":
            content = content.replace(b'"a2a-serverless', f'"{self.name}'.encode())
            return _serial(content) if self.agent in _ADAPTED else content
        if name in _WRITTEN.values():
            content = content.replace(b"@NAME@", self.name.encode())
            return content.replace(b"@VERSION@", self.version.encode())
        return content

    def record(self, folder: Path, rendered: Mapping[str, bytes]) -> None:
        """Keep the files as they were written, for the next upgrade."""
        base = folder / BASE
        shutil.rmtree(base, ignore_errors=True)
        kept = {name: content for name, content in rendered.items() if name not in OWNERS}
        _write(base / "written", kept)
        record = {"version": self.version, "agent": self.agent, "name": self.name}
        (base / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _serial(config: bytes) -> bytes:
    """Return samconfig.toml for an agent that keeps a state of its conversations."""
    config = config.replace(b'_overrides = "', b'_overrides = "Conversations=serial ')
    without = rb"(resolve_s3 = true\n)(?!parameter_overrides)"
    return re.sub(without, rb'\1parameter_overrides = "Conversations=serial"\n', config)


def checked_name(named: str | None, folder: Path) -> str:
    """Return the stack's name: as given, or made from the folder's name.

    Raises:
        ConfigurationError: AWS would refuse it.
    """
    own = folder.resolve().name
    name = re.sub(r"[^A-Za-z0-9]+", "-", own).strip("-") if named is None else named
    if not _NAME.fullmatch(name):
        shown = f"--name {named or repr(named)}"
        if named is None:
            shown = f"The name of the folder, {own},"
        raise ConfigurationError(f"{shown} {_NO_NAME}; choose one with --name.")
    return name


def create(folder: Path, project: Project, find_links: Sequence[str] = ()) -> None:
    """Write a project into a folder that is empty or missing: all of it, or nothing.

    Raises:
        ConfigurationError: the folder is not empty or cannot be written, or the packages cannot be
            resolved.
    """
    with _named(folder):
        if folder.exists() and not folder.is_dir():
            raise ConfigurationError(f"{folder} is no folder: name another one.")
        if folder.exists() and any(folder.iterdir()):
            msg = f"{folder} is not empty: nothing was written; name another one."
            raise ConfigurationError(msg)
    rendered = project.render()
    with TemporaryDirectory() as scratch:
        made = Path(scratch, "project")
        _write(made, rendered)
        Dependencies(made, find_links).lock()
        project.record(made, rendered)
        with _named(folder):
            _copy(made, folder)


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by their paths in a folder; make scripts executable."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if content.startswith(b"#!"):
            path.chmod(0o755)


def _copy(made: Path, folder: Path) -> None:
    """Copy a project into a folder; take away what was copied where that fails."""
    was_there = folder.exists()
    try:
        shutil.copytree(made, folder, dirs_exist_ok=True)
    except OSError:
        with suppress(OSError):
            for path in folder.iterdir() if was_there else [folder]:
                if path.is_dir():
                    shutil.rmtree(path)
                elif was_there:
                    path.unlink()
        raise


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Turn what the machine says about a folder into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, shutil.Error):
            reason = str(error.args[0][0][-1])  # of the first file that could not be copied
        raise ConfigurationError(
            f"{folder} cannot be written ({reason}): nothing was written; name another one."
        ) from error


@dataclass(frozen=True)
class _FileChange:
    """What an upgrade does with one file; `content` is None if nothing is written."""

    name: str
    change: _Change
    content: bytes | None = None
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.change:<9} {self.name}{self.remark and f': {self.remark}'}"


@dataclass(frozen=True)
class _Upgrade:
    """A planned upgrade: the project as it will be recorded, and what changes."""

    folder: Path
    before: Project
    after: Project
    rendered: Mapping[str, bytes]
    steps: tuple[_FileChange, ...]

    @property
    def conflicts(self) -> list[_FileChange]:
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
                _write(self.folder, {step.name: step.content})
                if mode is not None:
                    path.chmod(mode)
        self.after.record(self.folder, self.rendered)


def plan(folder: Path, *, repository: Path | None = None, version: str = __version__) -> _Upgrade:
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
    return _Upgrade(folder, before, after, rendered, tuple(step for step in steps if step))


def _step(folder: Path, name: str, theirs: bytes | None) -> _FileChange | None:
    """Return what becomes of one file; None: it stays as it is.

    Only lines count: a file with CR LF, of an editor or of git, keeps these.
    """
    base, own = _read(folder / BASE / "written" / name), _read(folder / name)
    step = _merged(name, base and _unix(base), own and _unix(own), theirs)
    if step and step.content and own and b"\r\n" in own:
        return replace(step, content=step.content.replace(b"\n", b"\r\n"))
    return step


def _merged(
    name: str, base: bytes | None, ours: bytes | None, theirs: bytes | None
) -> _FileChange | None:
    """Return what becomes of one file: as it was written, as it is, and as it is written now."""
    if theirs in (base, ours):
        return None
    if ours is None:
        if base is None:
            return _FileChange(name, "new", theirs)
        return _FileChange(
            name, "kept", remark="you have removed it, and the new version has changed it"
        )
    if theirs is None:
        if ours == base:
            return _FileChange(name, "removed")
        return _FileChange(
            name, "kept", remark="the new version has it no more, and you have edited it"
        )
    if ours == base:
        return _FileChange(name, "updated", theirs)
    merged, conflicts = _merge(ours, base or b"", theirs)
    if conflicts:
        return _FileChange(name, "conflict", merged, f"{conflicts} to decide, marked with <<<<<<<")
    return _FileChange(name, "merged", merged)


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
