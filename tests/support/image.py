"""The build stage of the Dockerfile without Docker: its instructions, below another root."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

from tests.e2e.installed import run

_FOLDERS = re.compile(r"(?<![\w.])/(?=(?:build|site|app)\b)")


def instructions(context: Path) -> list[tuple[str, str]]:
    """Names and arguments of the build stage's instructions, but for FROM."""
    text = (context / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    stage = (line.partition(" ") for line in lines[starts[0] + 1 : starts[1]] if line.strip())
    return [(name, " ".join(arguments.split())) for name, _, arguments in stage]


def sent(context: Path, name: str) -> bool:
    """Whether `.dockerignore` lets a file into the context: the last line that fits decides."""
    allowed = True
    for line in (context / ".dockerignore").read_text(encoding="utf-8").split():
        pattern = line.removeprefix("!")
        parents = [name, *map(str, Path(name).parents)]
        if pattern == "*" or any(_fits(parent, pattern) for parent in parents):
            allowed = line.startswith("!")
    return allowed


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(f"/{name}", pattern.replace("**/", "*/"))


def build_stage(context: Path, root: Path, python: Path) -> None:
    """Run the build stage: `/build`, `/site` and `/app` are folders of `root`.

    Args:
        context: the project.
        root: an empty folder.
        python: an interpreter with pip, in place of the image's.
    """
    variables: dict[str, str] = {}
    for name, arguments in instructions(context):
        here = _FOLDERS.sub(f"{root}/", arguments)
        if name == "COPY":
            source, target = here.split()
            _copy(context, source, Path(target))
        elif name == "ENV":
            variables |= dict([here.split("=", 1)])
        else:
            assert name == "RUN", name
            script = re.sub(r"\bpip (?=install)", f"{python} -m pip ", here)
            script = re.sub(r"\bpython (?=-m compileall)", f"{python} ", script)
            run(["sh", "-ec", script], cwd=root, **variables)


def _copy(context: Path, source: str, target: Path) -> None:
    """Copy a file, or what a folder has, as COPY does: `source` has to be in the context."""
    found = [context / source] if (context / source).is_file() else [*(context / source).rglob("*")]
    files = [path for path in found if path.is_file()]
    files = [path for path in files if sent(context, path.relative_to(context).as_posix())]
    assert files, f"COPY {source}: nothing of it is in the context"
    for path in files:
        place = target / path.relative_to(context / source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
