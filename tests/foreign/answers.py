"""`python -m tests.foreign.answers`: what each framework reads of each form of answer.

Runs the frameworks that are installed (`make clients`) against `a2a-serverless dev`, and prints the
table of docs/understand/clients.md. Exit codes: 0 all is as that page says, 1 a row is not, 2 a
framework is not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.commands import environment, running_with
from tests.foreign.answering import FORMS, TEXT

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
FRAMEWORKS: Final = {
    "google_adk": "Google ADK",
    "agent_framework": "agent-framework",
    "crewai": "CrewAI",
    "strands_client": "Strands",
}
READ_S: Final = 300
"""How long a framework may take for all forms, in seconds."""
LONGEST: Final = 45
"""Characters of another text that a cell shows."""

Told = Mapping[str, Mapping[str, str]]


@contextmanager
def answering() -> Iterator[str]:
    """Run the agent for the block; the URL of it."""
    agent = ("--agent", f"{HERE / 'answering.py'}:agent", "--card", str(HERE / "card.json"))
    command = ("dev", "--port", "0", *agent)
    with tempfile.TemporaryDirectory() as folder:
        log, own = Path(folder, "dev.log"), environment(A2A_AUTH="none")
        with running_with(Path(sys.executable), *command, env=own, output=log) as dev:
            url = dev.wait_for(r"A2A at (\S+),")
            yield f"{url.rstrip('/')}/"


def read(framework: str, url: str) -> Told:
    """Return what a framework has read, by way of calling and form; empty: it is not installed."""
    python = ROOT / "build" / "foreign" / framework / "bin" / "python"
    if not python.exists():
        return {}
    done = subprocess.run(
        [python, "-m", "tests.foreign.reading", framework, url, *FORMS],
        cwd=ROOT,
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'layers/runtime'}:{ROOT / 'src'}"),
        capture_output=True,
        text=True,
        timeout=READ_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"operation"')]
    if done.returncode:
        sys.exit(f"{framework} has ended with {done.returncode}: {done.stderr[-1500:]}")
    told = [json.loads(line) for line in lines]
    return {one.pop("operation"): one for one in told}


def cell(told: Mapping[str, str], form: str) -> str:
    """Return what was read of a form, in a few words."""
    if "error" in told:
        whole = "" if TEXT not in told["error"] else ", with the text"
        return f"raises {told['error'].partition(':')[0]}{whole}"
    says = " ".join(told["says"].split())
    if says == TEXT:
        return "whole"
    if says == form:
        return "the caller's own text"
    cut = says if len(says) <= LONGEST else f"{says[:LONGEST]}…"
    return f"`{cut}`" if says else "nothing"


def rows(told: Told) -> Iterator[tuple[str, list[str]]]:
    """Yield each way of calling, and its cells in the order of the forms."""
    for way in dict.fromkeys(key.partition("|")[0] for key in told):
        missing = {"error": "no answer: "}
        yield way, [cell(told.get(f"{way}|{form}", missing), form) for form in FORMS]


def main() -> int:
    """Print the table, and which rows the page has otherwise."""
    page = (ROOT / "docs" / "understand" / "clients.md").read_text(encoding="utf-8").splitlines()
    heads = ["client", *FORMS]
    sys.stdout.write(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
    missing, others, shown = [], [], set[str]()
    with answering() as url:
        for framework, name in FRAMEWORKS.items():
            told = read(framework, url)
            missing += [] if told else [name]
            for way, cells in rows(told):
                line = f"| {name}, {way} | {' | '.join(cells)} |"
                others += [] if line in page else [f"{name}, {way}"]
                shown.add(line)
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    names = tuple(f"| {name}, " for name in FRAMEWORKS.values())
    listed = [row for row in page if row.startswith(names) and row.count(" | ") == len(FORMS)]
    others += [row.split(" | ")[0][2:] for row in listed if row not in shown]
    if missing:
        sys.stderr.write(f"Not installed: {', '.join(missing)}: make clients\n")
        return 2
    sys.stderr.write(f"The page has otherwise: {'; '.join(others)}\n" if others else "")
    return int(bool(others))


if __name__ == "__main__":
    sys.exit(main())
