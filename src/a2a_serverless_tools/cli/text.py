"""What the commands show and ask on a terminal."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE, PROGRAM

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from a2a_serverless_tools.operate.tables import Table

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that command a terminal, or that turn the order of what it shows."""


_WIDEST: Final = 100_000
"""Columns of a table: a terminal wraps what is longer than its line, and a pipe gets it whole."""


def say(text: str) -> None:
    """Print to stderr, for the person at the terminal; stdout is for programs."""
    print(text, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Return `text` with its unprintable characters escaped as in a Python string.

    Among these are line ends, and characters that begin an escape sequence of a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def readable(text: str) -> str:
    """Return a text of several lines as it is, but for what would command a terminal."""
    return _COMMANDS.sub(
        lambda c: c[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n")
    )


def as_line(value: Any) -> str:
    """Return JSON in one line, with what would command a terminal escaped as JSON escapes it."""
    text = json.dumps(value, ensure_ascii=False)
    return _COMMANDS.sub(lambda c: f"\\u{ord(c[0]):04x}", text)


def escape_on_stdout() -> None:
    """Have stdout escape, as JSON does, what its encoding does not have: a text may be any."""

    def escaped(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error("a2a_escaped", escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="a2a_escaped")


def draw(table: Table, *, has_titles: bool = True) -> None:
    """Print a table, one row a line however long, with its title above and its note below it.

    Without titles a column that is empty is left out.
    """
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    if has_titles and table.title:
        print(table.title)
    if table.rows:
        texts = [[printable(str(cell)) for cell in row] for row in table.rows]
        shown = [has_titles or any(column) for column in zip(*texts, strict=True)]
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=has_titles)
        for title, look in compress(table.columns.items(), shown):
            side: JustifyMethod = "right" if "number" in look else "left"
            grid.add_column(Text(title), justify=side, no_wrap=True)
        for row in texts:
            grid.add_row(*map(Text, compress(row, shown)))
        console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
        with console.capture() as drawn:
            console.print(grid)
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    elif table.none:
        print(table.none)
    if has_titles and table.note:
        print(table.note)


def refuse(sentence: str) -> int:
    """Print why the command cannot do what was asked; return its exit code."""
    print(f"{PROGRAM}: {printable(sentence)}", file=sys.stderr)
    return EXIT_UNUSABLE


def agreed(question: str, options: Namespace) -> bool:
    """Return True if a person answers with yes, or has said so by `--yes`."""
    return options.yes or typed(f"{question} [y/N] ").lower() in ("y", "yes")


def typed(question: str) -> str:
    """Return what a person answers; empty if stdin is no terminal."""
    return input(printable(question)).strip() if sys.stdin.isatty() else ""


@contextmanager
def counting(
    text: str, *, total: int | None = None, prints_lines: bool = True
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how much is done so far; without a terminal it does nothing.

    If stdout is a terminal as well, work that `prints_lines` has no bar, because its lines are
    enough. `total` is how much there will be; None: unknown.
    """
    if not sys.stderr.isatty() or (prints_lines and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        one = bar.add_task(text, total=total)
        yield lambda done: bar.update(one, completed=done)
