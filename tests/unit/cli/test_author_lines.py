"""What `dev` prints of its log for the agent's author."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from a2a_serverless.worker import TaskContext, WaitTimeoutError
from a2a_serverless.worker.failures import AgentFailedError
from a2a_serverless_tools.cli.author_lines import _AuthorLines, for_authors
from a2a_serverless_tools.cli.plain_lines import PlainLines
from tests.support.observed import root_logger
from tests.support.present import present
from tests.unit.cli.conftest import Run
from tests.unit.cli.test_send import ours, task_of
from tests.unit.worker.test_steps import run as run_worker

HERE = Path(__file__)
TASK = {"task_id": "3a2ef00d", "turn": 1, "attempts": 2, "max_attempts": 3}
ABOUT = "; task 3a2ef00d; turn 1; attempts 2 of 3"
"""What a plain line says of it."""


def record(
    action: str, *, error: BaseException | None = None, text: str = "Said", **fields: Any
) -> logging.LogRecord:
    """A record of the runtime's log."""
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("a2a_serverless.worker", logging.WARNING, "x", 1, text, None, info)
    vars(made).update({"action": action, **TASK, **fields})
    return made


def printed(made: logging.LogRecord, *, verbose: bool = False, **options: Any) -> str:
    """What comes of a record."""
    out = io.StringIO()
    _AuthorLines(Console(file=out, width=80, **options), verbose=verbose).emit(made)
    return out.getvalue()


def raised(call: Callable[[], object]) -> AgentFailedError:
    """The error of an attempt whose agent has made this call."""
    try:
        try:
            call()
        except Exception as error:
            raise AgentFailedError from error
    except AgentFailedError as failed:
        return failed
    raise AssertionError


def parse() -> None:
    logging.getLevelNamesMapping()["no such level"]  # the line


def line_of(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def told(call: Callable[[], object], *, verbose: bool = False) -> str:
    """What comes of an attempt whose agent has made this call."""
    return printed(record("retry", error=raised(call), delay_s=1), verbose=verbose)


def test_a_failed_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Task, turn, attempt, wait, own lines and the text; whole paths where the folder is gone."""
    monkeypatch.chdir(HERE.parent)
    for delay_s, says in ((0.04, "0 s"), (1.26, "1.3 s"), (75.4, "75 s"), (4.0, "4 s")):
        block = printed(record("retry", error=raised(parse), delay_s=delay_s)).splitlines()
        assert block[0] == f"task 3a2e… turn 1 attempt 2 of 3, next in {says}"
    assert block[-3:] == [
        f"  test_author_lines.py, line {line_of('the line')}, in parse",
        '    logging.getLevelNamesMapping()["no such level"]  # the line',
        "  KeyError: 'no such level'",
    ]
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert f"  {HERE}, line {line_of('the line')}, in parse" in told(parse).splitlines()


def test_what_led_to_it() -> None:
    """What was raised before comes first; of a recursion its ends; `-v` adds libraries' frames."""

    def chained() -> None:
        try:
            parse()
        except KeyError as error:
            raise ExceptionGroup("both", [ValueError("one"), OSError("two")]) from error

    block = told(chained)
    parts = ["KeyError: ", "ExceptionGroup: both", "ValueError: one", "OSError: two"]
    places = [block.index(part) for part in parts]
    assert places == sorted(places)

    def deeper(depth: int) -> None:
        if depth == 0:
            json.loads("{")
        deeper(depth - 1)

    block = told(lambda: deeper(50))
    assert "  … 47 more\n" in block
    assert len(block.splitlines()) < 20
    assert "json/decoder.py" not in block
    assert "json/decoder.py" in told(lambda: deeper(50), verbose=True)


FAULT = {"text": "Task failed: no ending (a.py, line 3)"}
AT_FAULT = "attempt 2 of 3: the task has failed, not tried again\n  no ending (a.py, line 3)"


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        ("retry_later", {"text": "The agent waits."}, "attempt 2 of 3: The agent waits."),
        ("gave_up", {"attempts": 3}, "attempt 3 of 3: the task has failed"),
        ("gave_up", {"attempts": 1}, "attempt 1 of 3: the error is final, the task has failed"),
        ("deadline", {}, "attempt 2 of 3 came to its time limit, next at once"),
        ("cancel_raised", {}, "cancel() has raised, the task is canceled all the same"),
        ("error_after_end", {}, "raised after its ending, which counts"),
        ("agent_at_fault", FAULT, AT_FAULT),
    ],
)
def test_what_becomes_of_the_task(action: str, fields: dict[str, Any], says: str) -> None:
    """The first line says how it goes on."""
    assert says in printed(record(action, error=raised(parse), **fields))


@pytest.mark.parametrize(
    ("reason", "until", "says"),
    [
        ("asleep", 60_000, "task 3a2e… turn 1: asleep until 1970-01-01T00:01:00.000Z, 2 recorded"),
        ("handover", 0, "task 3a2e… turn 1: handed over to the next process, 2 recorded"),
    ],
)
def test_a_turn_that_is_left_at_a_record(reason: str, until: int, says: str) -> None:
    """It is told although it is no warning; what else an attempt says only if it is asked for."""
    made = record("turn_parked", reason=reason, until=until, records=2)
    other = record("turn_ended")
    for each in (made, other):
        each.levelno = logging.INFO
        del each.attempts, each.max_attempts  # type: ignore[attr-defined]
    assert printed(made) == f"{says}\n"
    assert printed(other) == ""
    assert "Said" in printed(other, verbose=True)
    with for_authors(verbose=False):
        assert logging.getLogger("a2a_serverless.worker.attempt").isEnabledFor(logging.INFO)


class RefusedError(Exception):
    """What a library raises of a service's answer."""

    status_code = 401


KEYS = "  set a key that its service takes, on your machine in .env, where it is deployed in"
VARIABLE = "  set NO_SUCH_KEY, on your machine in .env, where it is deployed in AgentSecretArn"


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (RefusedError("Incorrect API key"), KEYS),
        (ValueError("No API key was provided."), KEYS),
        (ValueError("No such city."), "  ValueError: No such city."),
        (None, VARIABLE),
    ],
)
def test_a_key_that_is_missing_or_not_taken(error: Exception | None, way_out: str) -> None:
    """The block ends with where keys are set; also where the library names no variable."""

    def ask() -> None:
        raise error or RefusedError(os.environ["NO_SUCH_KEY"])

    *_, last = told(ask).splitlines()
    assert last.startswith(way_out)


def test_an_exception_that_a_library_logs() -> None:
    """The author's lines and the text; of our own, and with --verbose, all; sentences are bare."""
    kept = record("agent_shared", text=f"{HERE} is broken.")
    del vars(kept)["task_id"]
    assert printed(kept).endswith("test_author_lines.py is broken.\n")
    error = raised(parse).__cause__
    made = record("", error=error, text="Node failed")
    made.name = "google_adk.node"
    line = f"test_author_lines.py, line {line_of('the line')}, in parse"
    assert printed(made).splitlines()[0].endswith(f" WARNING google_adk.node: Node failed{ABOUT}")
    assert line in printed(made)
    assert "Traceback" not in printed(made)
    for whole in (printed(made, verbose=True), printed(record("", error=error))):
        assert "Traceback" in whole


def test_nothing_colours_the_terminal_but_this() -> None:
    """Colours where the terminal has them; what an exception or a webhook's id has is escaped."""

    def hostile() -> None:
        raise ValueError("\x1b[31mred\x1b[0m [bold]x[/]")

    made = record("retry", error=raised(hostile), delay_s=1)
    assert "\x1b" not in printed(made)
    assert r"ValueError: \x1b[31mred\x1b[0m [bold]x[/]" in printed(made)
    coloured = printed(made, force_terminal=True, color_system="standard")
    assert "\x1b[1;31mtask 3a2e…" in coloured
    assert "\x1b[31mred" not in coloured
    about: dict[str, Any] = {"config_id": "crm\x1b[0m", "attempt": 4, "reason": "status 503"}
    made = record("push_failed", text="Receiver not told", **about)
    del vars(made)["attempts"], vars(made)["max_attempts"]
    line = "task 3a2e… turn 1 webhook crm\\x1b[0m attempt 4: Receiver not told (status 503)\n"
    assert printed(made) == line


def test_the_handler_of_the_command_line_alone_is_replaced(capsys: Any) -> None:
    """For the time of a block; a program's own handlers stay."""
    own, other = logging.StreamHandler(sys.stderr), logging.NullHandler()
    own.setFormatter(PlainLines("%(message)s"))
    with root_logger() as root:
        root.handlers[:] = [own, other]
        with for_authors(verbose=False):
            first, second = root.handlers
            assert (isinstance(first, _AuthorLines), second) == (True, other)
            root.handle(record("retry", delay_s=2))
        assert root.handlers == [own, other]
    assert capsys.readouterr().err == "task 3a2e… turn 1 attempt 2 of 3, next in 2 s\n"


async def test_a_question_and_the_end_of_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """A turn that asks is one line; one that no message has opened says so."""

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.ask("Which?", timeout_s=60)
        except WaitTimeoutError:
            await ctx.complete()

    out = io.StringIO()
    lines = _AuthorLines(Console(file=out, width=80))
    with caplog.at_level(logging.INFO):
        stand, head = await run_worker(handle)
    assert "turn_parked" not in [getattr(each, "action", "") for each in caplog.records]
    await stand.pass_time(61)
    log = present(await stand.bench.storage.read(head.task_id))
    lines.began(log)
    lines.ended(log, await stand.work())
    assert re.search("turn 2: completed after .*, as nobody had answered\n$", out.getvalue())


def test_each_turn_is_a_line(run: Run, tmp_path: Path) -> None:
    """It has the turn's number, its state, how long it took, and the message's first words."""
    out = io.StringIO()
    with ours(tmp_path, {"watch": _AuthorLines(Console(file=out, width=80))}) as url:
        asked = run("send", url, "ask")
        task = task_of(asked.err)
        run("send", url, "--task", task, "Oslo and then on to a town with a \x1blong name")
        run("send", url, "fail")

    took = r" after [\d.]+ m?s, "
    first, second, third = out.getvalue().splitlines()
    assert re.fullmatch(rf'task {task[:4]}… turn 1: input-required{took}"ask"', first)
    words = re.escape("Oslo and then on to a town with a \\x1blong…")
    assert re.fullmatch(rf'task {task[:4]}… turn 2: completed{took}"{words}"', second)
    assert re.fullmatch(rf'task \w{{4}}… turn 1: failed{took}"fail"', third)
