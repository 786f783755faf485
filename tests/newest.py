"""`python -m tests.newest [TESTS]`: what breaks on today's newest packages?

Installs the newest packages that all requirements together allow into build/newest, prints what
is newer than the locks and what is held back, and runs tests there, by default the short suite.
Resolves the locks of tools and frameworks anew, and prints what would change in each. Its exit code
is 0: it reports.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
HOME: Final = ROOT / "build" / "newest"
PYTHON: Final = HOME / "bin" / "python"
UV: Final = Path(sys.executable).parent / "uv"
EXTRAS: Final = ("local", "otel", "testing", "worker", "langgraph", "pydantic-ai")
"""Those that fit into one environment; the other frameworks have a lock each."""
WITH_OURS: Final = {"google_adk", "openai_agents", "strands", "agentcore"}
"""Locks that hold this package's requirements, too."""
SHORT: Final = ("tests/unit", "tests/contract", "tests/functions", "tests/conformance")
UNIVERSAL: Final = (
    *("--universal", "--python-version", "3.11", "--fork-strategy", "fewest"),
    *("--upgrade", "--no-header", "--no-annotate", "--quiet"),
)
TESTS_S: Final = 3_600
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_BROKEN: Final = re.compile(r"^(?:FAILED|ERROR) .*|^\d+ (?:passed|failed).*", re.MULTILINE)


def run(*command: str | Path, seconds: float = 600) -> str:
    """Run a command at the top of the repository; return all that it writes."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.stdout


def pins(text: str) -> dict[str, str]:
    """Return the version of each package of a lock or a list."""
    return {name.lower().replace("_", "-"): version for name, version in _PIN.findall(text)}


def changes(locked: Mapping[str, str], newest: Mapping[str, str]) -> Iterator[str]:
    """Yield what is of another version, or new."""
    for name, version in sorted(newest.items()):
        if (before := locked.get(name)) != version:
            yield f"{name} {before or 'not there'} -> {version}"


def resolve(wanted: Path) -> str:
    """Resolve requirements anew; return the changes from their lock, or why there is no answer."""
    own = ["pyproject.toml", "--extra", "local"] if wanted.parent.name in WITH_OURS else []
    told = run(UV, "pip", "compile", wanted, *own, *UNIVERSAL)
    newest = pins(told)
    if not newest:
        return told.strip()
    return ", ".join(changes(pins(wanted.with_suffix(".txt").read_text()), newest)) or "nothing"


def install() -> str:
    """Make the environment; return why it cannot be made, or nothing."""
    run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, HOME)
    ours = f".[{','.join(EXTRAS)}]"
    into = ("--quiet", "--python", PYTHON)
    return run(UV, "pip", "install", *into, "--editable", ours, "--group", "dev")


def main(arguments: Sequence[str]) -> int:
    """Print the report."""
    if fault := install():
        say("The newest packages cannot be installed together", [fault])
        return 0
    found = pins(run(UV, "pip", "freeze", "--python", PYTHON))
    locked = pins((ROOT / "requirements" / "dev.txt").read_text())
    say("Newer than the lock", changes(locked, found))
    outdated = run(UV, "pip", "list", "--outdated", "--python", PYTHON).splitlines()
    say("Held back", (line for line in outdated if line.endswith((" wheel", " sdist"))))
    told = run(PYTHON, "-m", "pytest", "-q", *(arguments or SHORT), seconds=TESTS_S)
    say("Tests", _BROKEN.findall(told) or told.splitlines()[-5:])
    folders = (ROOT / "requirements" / "tools", ROOT / "tests" / "foreign")
    wanted = sorted(each for folder in folders for each in folder.rglob("*.in"))
    say("Locks", (f"{each.relative_to(ROOT)}: {resolve(each)}" for each in wanted))
    return 0


def say(title: str, lines: Sequence[str] | Iterator[str]) -> None:
    """Print a part of the report."""
    sys.stdout.write(f"\n{title}\n")
    for line in lines:
        sys.stdout.write(f"  {line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
