"""Which `dev` a command asks, of several that run on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from a2a_serverless_tools import cli
from a2a_serverless_tools.console.dev_file import RunningDev, announced

READING = [
    ("task", "t"),
    ("tasks",),
    ("notifications",),
    ("undecodable", "show", "m"),
]
CHANGING = [
    ("tasks", "cancel", "t", "--yes"),
    ("tasks", "resend", "t", "--yes"),
    ("tasks", "purge", "--user", "ann", "--yes"),
    ("notifications", "delete", "m", "--yes"),
    ("undecodable", "delete", "m", "--yes"),
    ("console",),
]
"""A console is one of them, because its pages have commands that change something."""
BOT, MAP, BARE = "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"
"""Where nothing listens: a command that asks there gets no answer."""

Run = Callable[..., str]
Start = Callable[[str, Path | str], None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command says that is refused, or that has asked a dev; stdout stays empty."""
    for name in ("A2A_TABLE", "A2A_AGENT", "A2A_UNDECODABLE_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"):
        monkeypatch.delenv(name, raising=False)

    def run(*command: str) -> str:
        assert cli.main(command) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return run


@pytest.fixture
def devs() -> Iterator[Start]:
    """Starts a dev: an entry of the file."""
    with ExitStack() as running:
        yield lambda url, folder: running.enter_context(announced(RunningDev(url, "", str(folder))))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two projects with an agent each, and a folder without any."""
    for name in ("bot", "map"):
        (tmp_path / name / "functions/worker").mkdir(parents=True)
        (tmp_path / name / "functions/worker/agent.py").touch()
        (tmp_path / name / "template.yaml").write_text("Resources:\n  TaskTable:\n")
        (tmp_path / name / "docs").mkdir()
    (tmp_path / "bare").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", [*READING, *CHANGING])
def test_the_dev_of_the_project(
    run: Run, devs: Start, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is asked, and named, though another project's was started after it."""
    devs(BOT, home / "bot")
    devs(MAP, home / "map")
    monkeypatch.chdir(home / "bot/docs")
    which, answer = run(*command).splitlines()
    assert which == f"dev at {BOT} in {home}/bot"
    assert f"No answer from dev at {BOT}, " in answer


@pytest.mark.parametrize(
    ("running", "here"),
    [
        ([(BOT, "bot"), (MAP, "map")], "bare"),
        ([(BOT, "bot"), (BARE, "bare")], "map"),
        ([(BOT, "bot"), (MAP, "bot")], "bot"),
        ([(BOT, "bot"), (MAP, "bot/docs")], "bot/functions"),
        ([(MAP, "map")], "bot"),
        ([(MAP, "")], "bot"),
    ],
)
def test_nothing_is_changed_where_it_is_not_clear(
    run: Run,
    devs: Start,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: list[tuple[str, str]],
    here: str,
) -> None:
    """One sentence names the devs and the option; a command that reads asks the last one."""
    for url, folder in running:
        devs(url, home / folder if folder else "")
    monkeypatch.chdir(home / here)
    for command in CHANGING:
        said = run(*command)
        assert said.startswith("a2a-serverless: Nothing was done: ")
        assert said.count("\n") == 1
        assert "Choose with --dev ADDRESS: " in said
        assert all(url in said for url, _ in running)
    url, folder = running[-1]
    place = f"{url} in {home / folder}" if folder else url
    is_foreign = here != "bare" and all(Path(here).parts[0] != name for _, name in running)
    foreign = ", which is not of this folder" if is_foreign else ""
    more = "; 1 more run: see --dev" if len(running) > 1 else ""
    said = run("tasks")
    assert said.startswith(f"dev at {place}{foreign}{more}\n")
    assert f"No answer from dev at {url}, " in said


@pytest.mark.parametrize("command", [READING[0], CHANGING[0]])
def test_the_only_dev_is_asked_from_elsewhere(
    run: Run, devs: Start, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """From a folder that has no agent, and so no dev of its own."""
    devs(BOT, home / "bot")
    monkeypatch.chdir(home / "bare")
    assert run(*command).startswith(f"dev at {BOT} in {home}/bot\n")


@pytest.mark.parametrize("command", [*READING, *CHANGING])
def test_a_dev_that_is_named(
    run: Run, devs: Start, home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """It is asked wherever the command runs, also where the environment names a table."""
    for url, name in ((BOT, "bot"), (MAP, "map"), (BARE, "bare")):
        devs(url, home / name)
    monkeypatch.chdir(home / "bot")
    monkeypatch.setenv("A2A_TABLE", "tasks")
    monkeypatch.setenv("A2A_UNDECODABLE_QUEUE", "https://127.0.0.1:9/queue")
    assert f"No answer from dev at {MAP}, " in run(*command, "--dev", MAP)


@pytest.mark.parametrize("verb", ["cancel", "resend"])
@pytest.mark.parametrize(
    "address", [BOT, f"{BOT}/", "1", "127.0.0.1:1", "localhost:1", "http://localhost:1/"]
)
def test_an_option_before_a_verb(
    run: Run, devs: Start, home: Path, verb: str, address: str
) -> None:
    """It counts as one behind it."""
    devs(BOT, home / "bot")
    devs(MAP, home / "map")
    said = run("tasks", "--dev", address, verb, "t", "--yes")
    assert f"No answer from dev at {BOT}, " in said


@pytest.mark.parametrize("command", [READING[0], READING[2], CHANGING[0]])
def test_a_wrong_name(run: Run, devs: Start, home: Path, command: tuple[str, ...]) -> None:
    """A sentence says which devs run; and that a stack is another place."""
    assert run(*command, "--dev", "7").endswith("is running at 7; running: none.\n")
    devs(BOT, home / "bot")
    said = run(*command, "--dev", "7")
    assert said.endswith(f"No dev of yours is running at 7; running: {BOT} in {home}/bot.\n")
    assert "leave one of them out" in run(*command, "--dev", BOT, "--stack", "mine")
