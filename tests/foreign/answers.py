"""`python -m tests.foreign.answers [CLIENT...]`: what each client reads of each form of answer.

Runs the clients that are installed (`make clients`) against `a2a-serverless dev`, prints their rows
and writes them into the table of docs/understand/answers.md. Rows of others stay, with their date.
Exit codes: 0 all were read, 1 chunks break without streaming, too, 2 a client is not installed.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.e2e import commands
from tests.e2e.commands import environment, running_with
from tests.foreign.answering import FORMS, TEXT
from tests.foreign.reading import CLIENTS as READ

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
PAGE: Final = ROOT / "docs" / "understand" / "answers.md"
OF_JAVASCRIPT: Final = {
    "strands_ts": "Strands in TypeScript",
    "ai_sdk": "a2a-ai-provider",
    "gemini_cli": "Gemini CLI",
}
CLIENTS: Final = {folder: name for folder, (name, *_) in READ.items()} | OF_JAVASCRIPT
"""The name of each client, by its folder; those of JavaScript have one."""
JAVASCRIPT: Final = ROOT / "build" / "foreign" / "javascript"
BREAKS_CHUNKS: Final = ("google_adk", "crewai", "strands_client", "nemo", "trpc_agent")
"""Clients that show streamed chunks whole only where the card has no streaming."""
CLOSED: Final = "chunks, lastChunk"
READ_S: Final = 900
"""How long a client may take for all forms, in seconds."""
LONGEST: Final = 45
"""Characters of another text that a cell shows."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8}\b")

Told = Mapping[str, Mapping[str, str]]


@contextmanager
def answering(*, streams: bool = True) -> Iterator[str]:
    """Run the agent for the block, with a card that says whether it streams; the URL of it."""
    card = json.loads((HERE / "card.json").read_text(encoding="utf-8"))
    card["capabilities"]["streaming"] = streams
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "card.json")
        given.write_text(json.dumps(card), encoding="utf-8")
        agent = ("--agent", f"{HERE / 'answering.py'}:agent", "--card", str(given))
        command = ("dev", "--port", "0", "--file", str(Path(folder, "dev.db")), *agent)
        log, own = Path(folder, "dev.log"), environment(A2A_AUTH="none")
        with running_with(Path(sys.executable), *command, env=own, output=log) as dev:
            yield f"{dev.url.rstrip('/')}/"


def command(client: str) -> list[str | Path]:
    """Return the command that reads with a client; empty: it is not installed."""
    if client in OF_JAVASCRIPT:
        script = JAVASCRIPT / "reading.mjs"
        return ["node", script] if (JAVASCRIPT / "node_modules").exists() else []
    python = ROOT / "build" / "foreign" / client / "bin" / "python"
    if client == "python_1_3":
        python = Path(sys.executable)
    return [python, "-m", "tests.foreign.reading"] if python.exists() else []


def ran(command: Sequence[str | Path], *, cwd: Path = ROOT) -> tuple[dict[str, Any], str]:
    """Run a client; return what it tells of its operations, and, if it has failed, of its end."""
    env = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'layers/runtime'}:{ROOT / 'src'}")
    done = commands.ran(command, timeout=READ_S, cwd=cwd, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"operation"')]
    told = [json.loads(line) for line in lines]
    failed = f"ended with {done.returncode}: {done.stderr[-1500:]}" if done.returncode else ""
    return {one.pop("operation"): one for one in told}, failed


def read(client: str, url: str, forms: Iterable[str] = FORMS) -> Told:
    """Return what a client has read, by way of calling and form; empty: it is not installed."""
    reader = command(client)
    if not reader:
        return {}
    told, failed = ran([*reader, client, url, *forms])
    if failed:
        sys.exit(f"{client} has {failed}")
    return told


def cell(told: Mapping[str, str], form: str) -> str:
    """Return what was read of a form, in a few words."""
    if "error" in told:
        whole = "" if TEXT not in told["error"] else ", with the text"
        return f"raises {told['error'].partition(':')[0]}{whole}"
    says = _ID.sub("ID", " ".join(told["says"].split())).replace("`", "'").replace("|", "/")
    if says == TEXT:
        return "✓"
    if says == form:
        return "the caller's own text"
    if len(says) <= LONGEST:
        return f"`{says}`" if says else "nothing"
    return "✓ within a report" if TEXT in says else f"`{says[:LONGEST]}…`"


def shown(told: Told, way: str) -> Iterator[str]:
    """Yield the cells of a way of calling; that of `lastChunk` only where it differs."""
    silent = {"error": "no answer: "}
    cells = {form: cell(told.get(f"{way}|{form}", silent), form) for form in FORMS}
    closed = cells.pop(CLOSED)
    if closed != cells["chunks"]:
        cells["chunks"] += f"; with lastChunk {closed}"
    yield from cells.values()


def whole(told: Told) -> bool:
    """Return True if each way of calling shows chunks whole."""
    return {cell(one, "chunks") for key, one in told.items() if key.endswith("|chunks")} == {"✓"}


def rows(client: str, told: Told) -> list[str]:
    """Return the rows of a client; ways of calling that read the same have one."""
    ways: dict[tuple[str, ...], list[str]] = {}
    for way in dict.fromkeys(key.partition("|")[0] for key in told if "|" in key):
        ways.setdefault(tuple(shown(told, way)), []).append(way)
    own = f"{CLIENTS[client]} {told['version']['says']}"
    named = [(f"{own}, {' and '.join(names)}", cells) for cells, names in ways.items()]
    return [f"| {n} | {datetime.now(UTC):%Y-%m-%d} | {' | '.join(cells)} |" for n, cells in named]


def rows_of(client: str, page: str) -> list[str]:
    begins = re.compile(rf"\| {re.escape(CLIENTS[client])} \d")
    return [line for line in page.splitlines() if begins.match(line)]


def with_table(page: str, table: Sequence[str]) -> str:
    """Return the page with these rows in its first table."""
    lines = page.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    last = next(at for at in range(first, len(lines)) if not lines[at].startswith("|"))
    heads = ["client", "run", *(form for form in FORMS if form != CLOSED)]
    own = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *table]
    return "\n".join([*lines[:first], *own, *lines[last:], ""])


def main() -> int:
    """Print the rows, and write them into the page."""
    page, missing, broken = PAGE.read_text(encoding="utf-8"), [], []
    table = {client: rows_of(client, page) for client in CLIENTS}
    with answering() as url, answering(streams=False) as silent:
        for client in sys.argv[1:] or CLIENTS:
            told = read(client, url)
            if not told:
                missing.append(CLIENTS[client])
                continue
            own = rows(client, told)
            if client in BREAKS_CHUNKS and not whole(read(client, silent)):
                broken.append(CLIENTS[client])
            table[client] = own
            sys.stdout.write("".join(f"{row}\n" for row in own))
            sys.stdout.flush()
            PAGE.write_text(with_table(page, [*chain(*table.values())]), encoding="utf-8")
    sys.stderr.write(f"Not installed: {', '.join(missing)}: make clients\n" if missing else "")
    sys.stderr.write(f"Chunks break without streaming: {', '.join(broken)}\n" if broken else "")
    return 2 if missing else int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
