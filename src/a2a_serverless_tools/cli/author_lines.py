"""What `dev` prints of its log: one block for each failure, with the author's own lines."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.style import Style
from rich.text import Text

from a2a_serverless.tasks.entries import ModelsUsed, TurnOpened
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, plain_state
from a2a_serverless.tasks.usage import total
from a2a_serverless.worker.adapter import Watch
from a2a_serverless.worker.agents import SET_VARIABLE, missing_variable
from a2a_serverless.worker.failures import AgentFailedError, own_lines
from a2a_serverless.worker.services import Refusal, meaning_of
from a2a_serverless_tools.cli.plain_lines import PlainLines, in_context
from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.operate.wording import duration, left_at_record

_NEWS: Final[Mapping[str, str]] = {
    "agent_reloaded": "green",
    "agent_shared": "yellow",
    "many_events": "yellow",
    "never_awaited": "yellow",
    "loop_blocked": "yellow",
    "background_tasks_ended": "yellow",
    "call_after_end": "yellow",
}
"""The actions of log lines for the author, and their colours."""
_TOLD: Final = ("a2a_serverless_tools.local.own_code", "a2a_serverless.worker.attempt")
"""The loggers whose news are told although they are no warnings."""
_ENDS_IN: Final[Mapping[str, str]] = {"completed": "green", "failed": "red"}
_WORDS: Final = 40
"""The characters of a message that the line of its turn shows."""
_API_KEY: Final = re.compile(r"\bapi[ _-]?key\b", re.IGNORECASE)
_ENDS: Final = 3
"""Lines of a deep recursion that are shown at its beginning, and as many at its end."""


@contextmanager
def for_authors(*, verbose: bool) -> Iterator[Watch]:
    """Print what the command line logs to stderr as blocks for the agent's author.

    What it yields prints a line for each turn that ends.

    Handlers other than the command line's stay as they are. `verbose` adds whole tracebacks.
    """
    root, told = logging.getLogger(), [logging.getLogger(name) for name in _TOLD]
    before, levels = root.handlers[:], [each.level for each in told]
    handler = _AuthorLines(Console(stderr=True), verbose=verbose)
    root.handlers[:] = [
        handler if isinstance(each.formatter, PlainLines) else each for each in before
    ]
    for each in told:
        each.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        root.handlers[:] = before
        for each, level in zip(told, levels, strict=True):
            each.setLevel(level)


_WARNINGS: Final = {"retry_later", "push_failed", "cancel_forced"}
_PARKED: Final = "turn_parked"


class _AuthorLines(logging.Handler, Watch):
    """Prints records to a terminal.

    A failure of the agent is a block: the task, its turn and attempt, and what becomes of it; then
    the author's lines in the traceback, and the exception's text. Other records are lines as the
    other commands print them. A turn that ends is a line; turns are numbered from 1.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__()
        self._console = console
        self._verbose = verbose
        self._numbers: dict[tuple[object, object], int] = {}
        self.addFilter(in_context)
        self._plain = PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def began(self, log: Log) -> None:
        head = log.head
        turns = [record.version for record in log.records if record.opens_turn]
        self._numbers[head.task_id, head.turn.number] = 1 + turns.index(head.turn.number)

    def ended(self, log: Log, head: Head) -> None:
        opened = log.at(log.head.turn.number)
        why = "as nobody had answered" if opened.opening is None else _quoted(opened.opening)
        took = "" if opened.at is None else f" after {duration(max(0, head.status_at - opened.at))}"
        about = self._about({"task_id": head.task_id, "turn": log.head.turn.number})
        state = plain_state(head.state).replace("_", "-")
        used = _tokens_of_turn(log, head)
        tokens = f", {used:,} tokens" if used else ""
        line = f"{about}: {state}{took}{tokens}, {why}"
        # Not by `print`, whose layout takes a twentieth of a short turn.
        style = Style.parse(_ENDS_IN.get(state, "yellow"))
        has_colors = self._console.color_system is not None and not self._console.no_color
        self._console.file.write(f"{style.render(line) if has_colors else line}\n")
        self._console.file.flush()

    def emit(self, record: logging.LogRecord) -> None:
        action = getattr(record, "action", "")
        is_news = record.levelno >= logging.WARNING or action in _NEWS or action == _PARKED
        if not (is_news or self._verbose):
            return
        try:
            # Not wrapped: people copy a line of code, and click on a place to open it.
            self._console.print(self._text(record), soft_wrap=True)
        except Exception:  # noqa: BLE001 - logging's edge: a log call must not fail
            self.handleError(record)

    def _text(self, record: logging.LogRecord) -> Text:
        action = getattr(record, "action", "")
        if action in _NEWS:
            about = f"{self._about(vars(record))}: " if hasattr(record, "task_id") else ""
            return Text(about + _short(printable(record.getMessage())), style=_NEWS[action])
        if action == _PARKED:
            known = vars(record)
            how = left_at_record(str(known.get("reason")), known.get("until"))
            return Text(
                f"{self._about(vars(record))}: {how}, {known.get('records')} recorded", style="cyan"
            )
        if record.name == "py.warnings":
            said = map(printable, record.getMessage().rstrip().split("\n"))
            return Text(_short("\n  ".join(said)), style="yellow")
        outcome = _outcome(action, record)
        if not outcome:
            return self._line(record)
        style = "yellow" if action in _WARNINGS else "bold red"
        text = Text(f"{self._about(vars(record))}{outcome}", style=style)
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AgentFailedError) and error.__cause__ is not None:
            error = error.__cause__
        if error is not None:
            text.append_text(_block(error))
            if self._verbose:
                rest = "".join(traceback.format_exception(error)).rstrip().split("\n")
                text.append("".join(f"\n  {printable(line)}" for line in rest), style="dim")
        return text

    def _line(self, record: logging.LogRecord) -> Text:
        """Return a record as it is; of an exception that others have logged, the author's lines."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or self._verbose or record.name.startswith("a2a_serverless"):
            return Text(self._plain.format(record))
        bare = copy(record)
        bare.exc_info = bare.exc_text = None
        return Text(self._plain.format(bare)).append_text(_block(error))

    def _about(self, known: Mapping[str, Any]) -> str:
        """Return `task 3a2e… turn 1 attempt 2 of 3`, as far as it is known; of a webhook its id."""
        task = known.get("task_id", "")
        said = [f"task {printable(str(task))[:4]}…"]
        if "turn" in known:
            said.append(f"turn {self._numbers.get((task, known['turn']), known['turn'])}")
        tried = "attempts"
        if "config_id" in known:
            said.append(f"webhook {printable(str(known['config_id']))}")
            tried = "attempt"
        if tried in known:
            said.append(f"attempt {known[tried]}")
        if "max_attempts" in known:
            said.append(f"of {known['max_attempts']}")
        return " ".join(said)


def _tokens_of_turn(log: Log, head: Head) -> int:
    """Return the tokens of a turn: in the attempts before its last one, and in that."""
    before = [
        one
        for record in log.records
        for entry in record.entries
        if record.version >= log.head.turn.number and isinstance(entry, ModelsUsed)
        for one in entry.usage
    ]
    last = total(head.usage).tokens - total(log.head.usage).tokens
    return total(tuple(before)).tokens + last


def _outcome(action: str, record: logging.LogRecord) -> str:
    """Return what becomes of a task after a failure; empty for a record of another kind."""
    match action:
        case "retry_later":
            return f": {_short(printable(record.getMessage()))}"
        case "retry":
            return f", next in {_seconds(vars(record).get('delay_s', 0))}"
        case "deadline" if hasattr(record, "attempts"):
            return " came to its time limit, next at once"
        case "gave_up" if vars(record).get("attempts") != vars(record).get("max_attempts"):
            return ": the error is final, the task has failed"
        case "gave_up":
            return ": the task has failed"
        case "agent_at_fault":
            said = record.getMessage().removeprefix("Task failed: ")
            return f": the task has failed, not tried again\n  {_short(printable(said))}"
        case "cancel_raised":
            return ": cancel() has raised, the task is canceled all the same"
        case "push_failed" | "push_given_up" | "push_receiver_given_up" | "cancel_forced":
            reason = f" ({vars(record)['reason']})" if hasattr(record, "reason") else ""
            return f": {printable(record.getMessage() + reason)}"
        case "error_after_end":
            return ": raised after its ending, which counts"
    return ""


def _quoted(opening: TurnOpened) -> str:
    """Return the first words of the message with which a turn was opened."""
    words = " ".join(" ".join(part.text for part in opening.request.message.parts).split())
    words = words if len(words) <= _WORDS else f"{words[: _WORDS - 1].rstrip()}…"
    return f'"{printable(words)}"'


def _seconds(delay_s: float) -> str:
    return f"{delay_s:.0f} s" if delay_s >= 10 else f"{delay_s:.1f} s".replace(".0 s", " s")  # noqa: PLR2004 - two digits are enough


def _block(error: BaseException) -> Text:
    """Return the author's lines and the texts of an exception and of those that led to it."""
    text = Text()
    for each in _chain(error):
        lines = own_lines(each)
        if not lines and each is not error:
            continue
        left_out = len(lines) - 2 * _ENDS
        for number, line in enumerate(lines):
            if left_out > 0 and _ENDS <= number < len(lines) - _ENDS:
                if number == _ENDS:
                    text.append(f"\n  … {left_out} more")
                continue
            where = f"{_short(printable(line.filename))}, line {line.lineno}"
            text.append(f"\n  {where}", style="cyan")
            text.append(f", in {printable(line.name)}")
            if line.line:
                text.append(f"\n    {printable(line.line)}", style="bold")
        said = "".join(traceback.format_exception_only(each)).rstrip().split("\n")
        text.append("".join(f"\n  {printable(one)}" for one in said))
        if way_out := _way_out(each):
            text.append(f"\n  {printable(way_out)}", style="yellow")
        if isinstance(each, BaseExceptionGroup):
            for part in each.exceptions:
                text.append_text(_block(part))
    return text


def _way_out(error: BaseException) -> str:
    """Return where to set the key that an error asks for, or a service refuses; else nothing."""
    meant = meaning_of(error, 0)
    is_refused = isinstance(meant, Refusal) and meant.is_of_key
    is_asked_for = is_refused or _API_KEY.search(str(error))
    name = missing_variable(error) or ("a key that its service takes" if is_asked_for else "")
    return SET_VARIABLE.format(name) if name else ""


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while True:
        earlier = chain[0].__cause__
        if earlier is None and not chain[0].__suppress_context__:
            earlier = chain[0].__context__
        if earlier is None or earlier in chain:
            return chain
        chain.insert(0, earlier)


def _short(text: str) -> str:
    """Return a text in which the files below the current folder are named from there."""
    try:
        return text.replace(f"{Path.cwd()}{os.sep}", "")
    except FileNotFoundError:  # the folder is gone
        return text
