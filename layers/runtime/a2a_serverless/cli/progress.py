"""A bar for work that takes long, on stderr, where a person is at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(text: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many were found so far; without a terminal it does nothing.

    Where stdout is the terminal, too, the lines that are printed say enough.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        one = bar.add_task(text, total=None)
        yield lambda done: bar.update(one, completed=done)
