"""A progress bar for work that takes long, on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
