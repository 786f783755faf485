"""Which file of a `dev` a command looks at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from tests.unit.cli.conftest import Run

COMMANDS = [
    ("task", "t"),
    ("tasks",),
    ("tasks", "cancel", "t", "--yes"),
    ("tasks", "purge", "--user", "ann", "--yes"),
    ("notifications",),
    ("undecodable", "show", "m"),
]

Say = Callable[..., str]


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command says on stderr."""
    for name in ("A2A_TABLE", "A2A_AGENT", "A2A_UNDECODABLE_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"):
        monkeypatch.delenv(name, raising=False)
    return lambda *command: run(*command).err


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


@pytest.mark.parametrize(
    ("command", "here", "owner"),
    [
        *((command, "bot/docs", "bot") for command in COMMANDS),
        (("tasks",), "bot", "bot"),
        (("tasks",), "bare", "bare"),
    ],
)
def test_the_file_of_the_folder_or_project(
    run: Say,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    here: str,
    owner: str,
) -> None:
    """It is opened, and named, though no `dev` runs."""
    monkeypatch.chdir(home / here)
    assert run(*command).splitlines()[0] == f"file {home / owner / '.a2a/dev.db'}"


@pytest.mark.parametrize("command", [*COMMANDS, ("console",)])
def test_without_a_file_nothing_is_made(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """One sentence names the file that is looked for, and the ways out."""
    monkeypatch.chdir(home / "map/docs")
    said = run(*command)
    assert "A2A_TABLE is not set, no --stack is named, and no dev has made" in said
    assert f"a file {home / 'map/.a2a/dev.db'}: name the table" in said
    assert said.count("\n") == 1
    assert not (home / "map/.a2a").exists()
    missing = run(*command, "--file", "nowhere.db")
    assert (
        missing == "a2a-serverless: There is no file nowhere.db: name that of a dev with --file.\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_named(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is opened wherever the command runs, also where the environment names a table."""
    named = made(home / "elsewhere/other.db")
    monkeypatch.chdir(home / "bot")
    monkeypatch.setenv("A2A_TABLE", "tasks")
    monkeypatch.setenv("A2A_UNDECODABLE_QUEUE", "https://127.0.0.1:9/queue")
    monkeypatch.setenv("A2A_QUEUE", "https://127.0.0.1:9/queue")
    said = run(*command, "--file", str(named))
    assert not said.startswith("file ")
    assert "AWS" not in said
    both = run(*command, "--file", str(named), "--stack", "mine")
    assert "--file and --stack name two places: leave one of them out." in both


CHANGES = COMMANDS[2:4]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_of_the_environment_is_named(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is used, and a change is refused where the folder's own file may be meant."""
    named = made(home / "elsewhere/other.db")
    monkeypatch.setenv("A2A_TABLE", f"file:{named}")
    used = f"table file:{named}, which A2A_TABLE names"
    monkeypatch.chdir(home / "map")
    assert run(*command).splitlines()[0] == used
    monkeypatch.chdir(home / "bot/docs")
    said, own = run(*command), home / "bot/.a2a/dev.db"
    is_change = command in CHANGES
    refused = f"Nothing was changed: A2A_TABLE names the table file:{named}, and the dev of this"
    assert (refused in said, f"has the file {own}." in said) == (is_change, is_change)
    assert (said.splitlines()[0] == used) is not is_change
    monkeypatch.setenv("A2A_TABLE", f"file:{own}")
    assert "Nothing was changed" not in run(*command)


def test_an_option_before_a_verb(run: Say, home: Path) -> None:
    """It counts as one behind it."""
    named = str(home / "bot/.a2a/dev.db")
    before = run("tasks", "--file", named, "cancel", "t", "--yes")
    assert before == run("tasks", "cancel", "t", "--yes", "--file", named)
    assert before.startswith(f"a2a-serverless: The file {named} has no task t")


def test_a_file_that_is_not_there_is_not_made(
    run: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name in A2A_TABLE is told, and does not look like a table without tasks."""
    monkeypatch.setenv("A2A_TABLE", f"file:{tmp_path}/nope.db")
    assert run("tasks") == (
        f"a2a-serverless: There is no file {tmp_path}/nope.db, which A2A_TABLE names.\n"
    )
    assert list(tmp_path.iterdir()) == []
