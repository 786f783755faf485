"""What commands take for a value and as settings, how they serve, and which file they look at."""

from __future__ import annotations

import asyncio
import socket
import threading
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import PULL_LIMIT_S
from a2a_serverless_tools.cli.arguments import Parser, agent_spec
from a2a_serverless_tools.cli.processes import VISIBILITY_S, _settings
from a2a_serverless_tools.cli.serving import serve
from tests.unit.cli.conftest import Run

DASHED = "-bcdefghijklmnopqrstuv"
TWICE_DASHED = "--cdEfghijklmnopqrstu1"


def test_an_id_or_scope_may_begin_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """It is a value, and no option; names of options are words, which no id is likely to be.

    A refusal repeats the argument as it was given, and names the option for an agent's file.
    """
    parser = Parser(prog="task")
    command = parser.add_subparsers().add_parser("task")
    command.add_argument("id")
    command.add_argument("--scope")
    command.add_argument("--twenty-two-character", action="store_true", dest="is_long")
    for task_id, scope in product((DASHED, TWICE_DASHED, "plain"), repeat=2):
        options = parser.parse_args(["task", task_id, "--scope", scope])
        assert (options.id, options.scope) == (task_id, scope)
    assert parser.parse_args(["task", "plain", "--twenty-two-character"]).is_long
    for extra, said in (
        (DASHED, f"unrecognized arguments: {DASHED};"),
        ("agent.py", "agent.py: the option --agent names an agent's file"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(["task", "plain", extra])
        assert said in capsys.readouterr().err


def test_a_file_alone_names_its_agent(tmp_path: Path) -> None:
    """What the file has instead is said when it is loaded."""
    file = tmp_path / "mine.py"
    file.touch()
    assert agent_spec(str(file)) == f"{file}:agent"
    assert agent_spec(f"{file}:other") == f"{file}:other"
    with pytest.raises(ConfigurationError, match="There is no agent at"):
        agent_spec(str(tmp_path / "another.py"))


def test_the_settings_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The visibility is the default, unless the variable sets it, even to the function's.

    `--turn-limit` is the limit of a turn, else A2A_TURN_LIMIT_S is, else there is none. SQS keeps a
    message for twelve hours: one sentence says how long a turn may run.
    """

    def chosen(option: float | None = None, **variables: str) -> Settings:
        return _settings(load_settings(variables), Namespace(turn_limit=option))

    monkeypatch.delenv("A2A_VISIBILITY_S", raising=False)
    assert chosen().visibility_s == VISIBILITY_S
    monkeypatch.setenv("A2A_VISIBILITY_S", "60")
    assert chosen(A2A_VISIBILITY_S="60").visibility_s == 60
    assert chosen(90.0, A2A_TURN_LIMIT_S="60").turn_limit_s == 90
    assert chosen(A2A_TURN_LIMIT_S="60").turn_limit_s == 60
    assert chosen().turn_limit_s == 0
    longest = PULL_LIMIT_S + 1
    with pytest.raises(ConfigurationError, match=r"^--turn-limit 41401 is too long.* 41400 s"):
        chosen(longest)
    with pytest.raises(ConfigurationError, match=r"^A2A_TURN_LIMIT_S 41401 is too long.* 41400 s"):
        chosen(A2A_TURN_LIMIT_S=str(longest))


def test_no_work_begins_where_the_health_port_is_taken() -> None:
    """A worker that cannot say that it is well takes nothing from the queue, not even once."""

    async def work() -> None:
        pytest.fail("it works")

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"The port {port} for health checks"):
            serve(memory_backends(Settings()), work(), drain_s=0, health_port=port)


def test_the_last_metrics_wait_for_no_thread() -> None:
    """They are written before the process waits for a thread that an agent has left behind."""
    written, in_time = threading.Event(), []

    def left_behind() -> None:
        in_time.append(written.wait(20))

    async def work() -> None:
        metrics.count("Attempts")
        asyncio.get_running_loop().run_in_executor(None, left_behind)

    metrics.start(metrics.Emf("Mine", service="worker", write=lambda _: written.set()))
    try:
        assert serve(memory_backends(Settings()), work(), drain_s=0) == 0
    finally:
        metrics.stop()
    assert in_time == [True]


# -- which file of a dev a command looks at -------------------------------------------------------

CHANGES = ("tasks cancel t --yes", "tasks purge --user ann --yes")
COMMANDS = ("task t", "tasks", *CHANGES, "notifications", "undecodable show m")

Say = Callable[..., str]


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command says on stderr."""
    for name in ("TABLE", "AGENT", "UNDECODABLE_QUEUE", "PUSH_DEAD_LETTER_QUEUE"):
        monkeypatch.delenv(f"A2A_{name}", raising=False)
    return lambda command, *more: run(*command.split(), *more).err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two projects, and a folder that is in none; one project and the folder have a file."""
    for name in ("bot", "map"):
        (tmp_path / name / "docs").mkdir(parents=True)
        (tmp_path / name / "template.yaml").write_text("Resources:\n  TaskTable:\n")
    for name in ("bot", "bare"):
        made(tmp_path / name / ".a2a/dev.db")
    return tmp_path


def made(file: Path) -> Path:
    """A file without tasks."""
    file.parent.mkdir(parents=True)
    SqliteTable(file, INDEXES).close()
    return file


@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_of_the_project(run: Say, home: Path, monkeypatch: Any, command: str) -> None:
    """It is opened, and named, though no `dev` runs; where there is none, none is made."""
    monkeypatch.chdir(home / "bot/docs")
    assert run(command).splitlines()[0] == f"file {home / 'bot/.a2a/dev.db'}"
    monkeypatch.chdir(home / "map/docs")
    for asked in (command, "console"):
        said = run(asked)
        assert "A2A_TABLE is not set, no --stack is named, and no dev has made" in said
        assert f"a file {home / 'map/.a2a/dev.db'}: name the table" in said
        assert said.count("\n") == 1
    assert not (home / "map/.a2a").exists()
    missing = "a2a-serverless: There is no file nowhere.db: name that of a dev with --file.\n"
    assert run(command, "--file", "nowhere.db") == missing


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_is_named(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It is used, but no change where the folder's file may be meant; --file is opened anyway."""
    named = made(home / "elsewhere/other.db")
    monkeypatch.setenv("A2A_TABLE", f"file:{named}")
    used = f"table file:{named}, which A2A_TABLE names"
    monkeypatch.chdir(home / "map")
    assert run(command).splitlines()[0] == used
    monkeypatch.chdir(home / "bot/docs")
    said, own = run(command), home / "bot/.a2a/dev.db"
    is_change = command in CHANGES
    refused = f"Nothing was changed: A2A_TABLE names the table file:{named}, and the dev of this"
    assert (refused in said, f"has the file {own}." in said) == (is_change, is_change)
    assert (said.splitlines()[0] == used) is not is_change
    monkeypatch.setenv("A2A_TABLE", f"file:{own}")
    assert "Nothing was changed" not in run(command)
    for name in ("A2A_UNDECODABLE_QUEUE", "A2A_QUEUE"):
        monkeypatch.setenv(name, "https://127.0.0.1:9/queue")
    said = run(command, "--file", str(named))
    assert (said.startswith("file "), "AWS" in said) == (False, False)
    both = run(command, "--file", str(named), "--stack", "mine")
    assert "--file and --stack name two places: leave one of them out." in both


def test_other_files(run: Say, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no project that of the folder counts; --file may stand before a verb; none is made."""
    for here in ("bot", "bare"):
        monkeypatch.chdir(home / here)
        assert run("tasks").splitlines()[0] == f"file {home / here / '.a2a/dev.db'}"
    named = str(home / "bot/.a2a/dev.db")
    before = run("tasks", "--file", named, "cancel", "t", "--yes")
    assert before == run("tasks cancel t --yes", "--file", named)
    assert before.startswith(f"a2a-serverless: The file {named} has no task t")
    monkeypatch.setenv("A2A_TABLE", f"file:{home}/nope.db")
    missing = f"a2a-serverless: There is no file {home}/nope.db, which A2A_TABLE names.\n"
    assert run("tasks") == missing
    assert not (home / "nope.db").exists()
