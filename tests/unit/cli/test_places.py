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


@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_of_the_project(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is opened, and named, though no `dev` runs; where there is none, none is made."""
    monkeypatch.chdir(home / "bot/docs")
    assert run(*command).splitlines()[0] == f"file {home / 'bot/.a2a/dev.db'}"
    monkeypatch.chdir(home / "map/docs")
    for asked in (command, ("console",)):
        said = run(*asked)
        assert "A2A_TABLE is not set, no --stack is named, and no dev has made" in said
        assert f"a file {home / 'map/.a2a/dev.db'}: name the table" in said
        assert said.count("\n") == 1
    assert not (home / "map/.a2a").exists()
    missing = "a2a-serverless: There is no file nowhere.db: name that of a dev with --file.\n"
    assert run(*command, "--file", "nowhere.db") == missing


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_of_the_environment_is_named(
    run: Say, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is used, and a change is refused where the folder's own file may be meant.

    A file that is named with --file is opened all the same, and no queue of AWS.
    """
    named = made(home / "elsewhere/other.db")
    monkeypatch.setenv("A2A_TABLE", f"file:{named}")
    used = f"table file:{named}, which A2A_TABLE names"
    monkeypatch.chdir(home / "map")
    assert run(*command).splitlines()[0] == used
    monkeypatch.chdir(home / "bot/docs")
    said, own = run(*command), home / "bot/.a2a/dev.db"
    is_change = command in COMMANDS[2:4]
    refused = f"Nothing was changed: A2A_TABLE names the table file:{named}, and the dev of this"
    assert (refused in said, f"has the file {own}." in said) == (is_change, is_change)
    assert (said.splitlines()[0] == used) is not is_change
    monkeypatch.setenv("A2A_TABLE", f"file:{own}")
    assert "Nothing was changed" not in run(*command)
    for name in ("A2A_UNDECODABLE_QUEUE", "A2A_QUEUE"):
        monkeypatch.setenv(name, "https://127.0.0.1:9/queue")
    said = run(*command, "--file", str(named))
    assert (said.startswith("file "), "AWS" in said) == (False, False)
    both = run(*command, "--file", str(named), "--stack", "mine")
    assert "--file and --stack name two places: leave one of them out." in both


def test_other_files(run: Say, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no project that of the folder counts; --file may stand before a verb; none is made."""
    for here in ("bot", "bare"):
        monkeypatch.chdir(home / here)
        assert run("tasks").splitlines()[0] == f"file {home / here / '.a2a/dev.db'}"
    named = str(home / "bot/.a2a/dev.db")
    before = run("tasks", "--file", named, "cancel", "t", "--yes")
    assert before == run("tasks", "cancel", "t", "--yes", "--file", named)
    assert before.startswith(f"a2a-serverless: The file {named} has no task t")
    monkeypatch.setenv("A2A_TABLE", f"file:{home}/nope.db")
    missing = f"a2a-serverless: There is no file {home}/nope.db, which A2A_TABLE names.\n"
    assert run("tasks") == missing
    assert not (home / "nope.db").exists()
