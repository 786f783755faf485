"""The build stage of the Dockerfile without Docker: its instructions, below another root."""

import json
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.e2e.installed import run

_FOLDERS = re.compile(r"(?<![\w.])/(?=(?:build|site|app)\b)")


Instruction = tuple[str, str]
"""The name and the arguments of one line of a Dockerfile."""

ARM64 = (
    "--python-version 3.13 --implementation cp --abi cp313 --abi abi3 --abi none",
    *(f"--platform manylinux_2_{glibc}_aarch64" for glibc in (17, 24, 26, 27, 28, 31, 34)),
    "--platform manylinux2014_aarch64",
)
"""What pip is told on another machine to install what it would inside of the image."""


def stages(context: Path) -> list[list[Instruction]]:
    """The instructions of the Dockerfile's stages, but for FROM: the build's, and the image's."""
    text = (context / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found: list[list[Instruction]] = []
    for line in filter(str.strip, lines):
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            found.append([])
        else:
            found[-1].append((name, " ".join(arguments.split())))
    return found


def instructions(context: Path) -> list[Instruction]:
    """Names and arguments of the build stage's instructions, but for FROM."""
    return stages(context)[0]


def configuration(context: Path) -> dict[str, Any]:
    """What the last stage gives to its containers, by its instructions; ENV by variables."""
    made: dict[str, Any] = {"ENV": {}}
    for name, words in stages(context)[-1]:
        if name == "ENV":
            made[name] |= dict(each.split("=", 1) for each in words.split())
        elif name in ("ENTRYPOINT", "CMD"):  # a line without brackets would be run by a shell
            made[name] = json.loads(words)
        elif name not in ("COPY", "RUN"):
            made[name] = words
    return made


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


def build_stage(
    context: Path, root: Path, python: Path, *, pip_options: Sequence[str] = ()
) -> None:
    """Run the build stage: `/build`, `/site` and `/app` are folders of `root`."""
    variables: dict[str, str] = {}
    for name, arguments in instructions(context):
        here = _FOLDERS.sub(f"{root}/", arguments)
        if name == "COPY":
            *sources, target = here.split()
            _copy(context, sources, Path(target))
        elif name == "ENV":
            variables |= dict([here.split("=", 1)])
        else:
            assert name == "RUN", name
            pip = " ".join((f"{python} -m pip install", *pip_options))
            script = re.sub(r"\bpip install\b", pip, here)
            # The bytecode names files as they are in the image.
            compileall = f"{python} -m compileall -s {root} -p /"
            script = re.sub(r"\bpython -m compileall\b", compileall, script)
            run(["sh", "-ec", script], cwd=root, **variables)


def _copy(context: Path, sources: Sequence[str], target: Path) -> None:
    """Copy files, and what folders have, as COPY does: a pattern may match nothing, a name not."""
    for source in sources:
        found = [*context.glob(source)]
        files = [path for each in found for path in (each, *each.rglob("*")) if path.is_file()]
        files = [path for path in files if sent(context, path.relative_to(context).as_posix())]
        assert files or "*" in source, f"COPY {source}: nothing of it is in the context"
        for path in files:
            folder = next(each for each in found if path.is_relative_to(each))
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
