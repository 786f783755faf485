"""`a2a-serverless dev` while its agent is edited, and what it says of an author's mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import environment, run, running, running_with, until
from tests.e2e.conftest import CARD
from tests.e2e.devs import Dev, running_dev
from tests.support.a2a_calls import message

pytestmark = pytest.mark.timeout(400)
"""Each edit starts a process, which takes seconds where other tests use the processors."""

REQUESTS = 20
HEAD = "import asyncio\nimport os\nimport time\nfrom a2a_serverless.worker import Worker\n"
ECHO = f"""{HEAD}
import words

class Agent(Worker):
    async def handle(self, ctx):
        if ctx.user_text == "hold":
            await ctx.send_status("holding")
            while not os.path.exists("go"):
                await asyncio.sleep(0.02)
        await ctx.complete(words.WORD)

agent = Agent()
"""


@contextmanager
def dev(folder: Path, agent: str = ECHO, word: str = "first", **files: str) -> Iterator[Dev]:
    """A `dev` in a folder with an agent, its word, and further files."""
    files = {"agent.py": agent, "words.py": f"WORD = '{word}'\n", **files}
    for name, text in {"agent_card.json": Path(CARD).read_text(), **files}.items():
        (folder / name).write_text(text)
    variables = {"A2A_RETRY_BASE_S": "0.01", "A2A_CANCEL_TIMEOUT_S": "2", "COLUMNS": "80"}
    with running_dev(folder, **variables) as edited:
        yield edited
        assert edited.command.end() == 0, edited.command.said()


def text_of(task: dict[str, Any]) -> str:
    text: str = task["artifacts"][0]["parts"][0]["text"]
    return text


def reason_of(task: dict[str, Any]) -> str:
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    reason: str = task["status"]["message"]["parts"][0]["text"]
    return reason


@pytest.mark.long
def test_edits_in_a_row(tmp_path: Path) -> None:
    """The next turn has the new code, and the process that waited as a spare runs it.

    Until it is repaired, the process before it goes on, and messages say what is wrong. A module
    that comes later counts for the next message, though no known file has changed.
    """
    words, agent = tmp_path / "words.py", tmp_path / "agent.py"
    telling = ECHO.replace("words.WORD)", "f'{words.WORD} {os.getpid()}')")
    raises = "    def __init__(self): raise OSError('no')\n"
    raising = telling.replace("    async def", f"{raises}    async def")
    breaks: tuple[Callable[[], object], ...] = (
        words.unlink,
        lambda: words.write_text("WORD = (\n"),
        lambda: agent.write_text(raising),
    )
    with dev(tmp_path, telling) as edited:
        for number, breaks_it in enumerate(breaks):
            breaks_it()
            reason = reason_of(edited.send())
            assert re.search(r"(words|agent)\.py, line \d+\)\S? ", reason)
            assert reason.endswith("Repair it, and send the message again.")
            edited.until_spare()
            spare = edited.children()[-1]
            agent.write_text(telling)
            words.write_text(f"WORD = 'edit {number}'\n")
            assert text_of(edited.send()) == f"edit {number} {spare}"
        said = edited.command.said()
        words.write_text("import os\nos._exit(7)\n")
        assert "has ended at its start (with exit code 7)" in reason_of(edited.send())
        words.write_text("from more_words import WORD\n")
        for _ in range(2):
            assert "No module named 'more_words'" in reason_of(edited.send())
        (tmp_path / "more_words.py").write_text("WORD = 'later'\n")
        assert text_of(edited.send()).startswith("later ")
    ends = "turn 1 attempt 1 of 3: the task has failed, not tried again\n  The agent "
    assert said.count(f"{ends}'agent.py:agent'") == len(breaks)
    assert said.count("changed: loading the new code") >= 2 * len(breaks)


NOTES = '            open("starts", "a").write(words.WORD + " ")\n'
HELD = ECHO.replace('"hold":\n', f'"hold":\n{NOTES}')


def test_a_turn_that_runs_and_a_stream(tmp_path: Path) -> None:
    """A turn that ends soon ends with its code, and an open stream shows it to its end."""
    body = {"message": message("hold", messageId="held")}
    with (
        dev(tmp_path, HELD, "old") as edited,
        edited.http.stream("POST", "/message:stream", json=body) as answer,
    ):
        events = (json.loads(line[5:]) for line in answer.iter_lines() if line[:5] == "data:")
        seen = [next(events), next(events)]
        edited.until_spare()
        (tmp_path / "words.py").write_text("WORD = 'new'\n")
        with Dev(edited.command, tmp_path) as beside:
            sent = beside.send(waits=False)["id"]
            (tmp_path / "go").touch()
            assert text_of(beside.until("COMPLETED", sent)) == "new"
        seen += events
        assert seen[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert text_of(edited.task(seen[0]["task"]["id"])) == "old"
    assert (tmp_path / "starts").read_text() == "old "


@pytest.mark.long
def test_a_turn_that_is_handed_over(tmp_path: Path) -> None:
    """The new code begins a turn again that does not end soon, without a word to its client."""
    with dev(tmp_path, HELD, "old") as edited:
        held = edited.send("hold", waits=False)["id"]
        edited.until("holding", held)
        (tmp_path / "words.py").write_text("WORD = 'new'\n")
        until(lambda: (tmp_path / "starts").read_text() == "old new ")
        (tmp_path / "go").touch()
        assert text_of(edited.until("COMPLETED", held)) == "new"


@pytest.mark.long
def test_requests_beside_edits(tmp_path: Path) -> None:
    """None is refused, dropped or left without an answer; their connections stay open between."""
    with dev(tmp_path, word="edit 0") as edited, ThreadPoolExecutor(2) as pool:

        def ask(edits: frozenset[int]) -> list[str]:
            answers = []
            with Dev(edited.command, tmp_path) as caller:
                for number in range(REQUESTS // 2):
                    if number in edits:
                        (tmp_path / "words.py").write_text(f"WORD = 'edit {number}'\n")
                    answers.append(text_of(caller.send()))
            return answers

        answers, beside = pool.map(ask, (frozenset({3, 7}), frozenset()))
        assert len(answers + beside) == REQUESTS
    assert answers == ["edit 0"] * 3 + ["edit 3"] * 4 + ["edit 7"] * 3


@pytest.mark.long
def test_an_agent_that_ends_its_process(tmp_path: Path) -> None:
    """It takes neither the port nor the console with it, and its task fails like another one."""
    exits = "        if ctx.user_text == 'exit':\n            os._exit(7)\n"
    exiting = ECHO.replace("        await ctx.complete", f"{exits}        await ctx.complete")
    with dev(tmp_path, exiting, "on") as edited:
        link = edited.command.wait_for(r"chat and console \(this link works once\): (\S+)")
        assert edited.http.get(link).status_code == 303
        ended = edited.send("exit", waits=False)["id"]
        edited.command.wait_for("attempt 3 of 3: the task has failed")
        assert edited.task(ended)["status"]["state"] == "TASK_STATE_FAILED"
        assert text_of(edited.send()) == "on"
        assert edited.http.get("/_console/status").status_code == 200
        assert "has ended (with exit code 7): another one serves now" in edited.command.said()


@pytest.mark.long
def test_ctrl_c(tmp_path: Path) -> None:
    """A terminal sends it to all processes: all end, and a turn that runs is given back."""
    with dev(tmp_path, HELD) as edited:
        edited.until("holding", edited.send("hold", waits=False)["id"])
        edited.until_spare()
        children = edited.children()
        for process in (*children, edited.command.process.pid):
            os.kill(process, signal.SIGINT)
        assert edited.command.process.wait(60) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert "Traceback" not in edited.command.said()


@pytest.mark.long
def test_variables_and_card_that_change(tmp_path: Path) -> None:
    """`.env` counts from the next message on, and is named where a key is missing."""
    keyed = ECHO.replace("class Agent", "KEY = os.environ['MODEL_KEY']\n\nclass Agent")
    keyed, variables = keyed.replace("words.WORD)", "KEY)"), {".env": "MODEL_KEY=first\n"}
    way_out = "line 8): set MODEL_KEY, on your machine in .env, "
    with dev(tmp_path, keyed, **variables) as edited:
        assert text_of(edited.send()) == "first"
        (tmp_path / ".env").write_text("MODEL_KEY=second\n")
        card = json.loads(Path(CARD).read_text()) | {"name": "Renamed"}
        (tmp_path / "agent_card.json").write_text(json.dumps(card))
        shown = "/.well-known/agent-card.json"
        until(lambda: edited.http.get(shown).json()["name"] == "Renamed")
        assert text_of(edited.send()) == "second"
        (tmp_path / ".env").write_text("OTHER_KEY=second\n")
        assert way_out in reason_of(edited.send())
        (tmp_path / ".env").write_text("MODEL_KEY=third\n")
        assert text_of(edited.send()) == "third"
        (tmp_path / "agent_card.json").write_text("{")
        assert "agent_card.json" in reason_of(edited.send())
        assert edited.http.get(shown).json()["name"] == "Renamed"
        (tmp_path / "agent_card.json").write_text(json.dumps(card))
        assert text_of(edited.send()) == "third"
        said = edited.command.said()
    told = [line for line in said.splitlines() if "changed: loading" in line]
    assert sum("agent_card.json" in line for line in told) == 3, said
    assert sum(".env" in line for line in told) == 3, said
    (tmp_path / ".env").unlink()
    refused = run("dev", "--port", "0", cwd=tmp_path)
    assert (refused.returncode, way_out in refused.stderr) == (2, True)


@pytest.mark.long
def test_packages_that_change(tmp_path: Path) -> None:
    """A package that is replaced counts for the next turn, as an edit; each process is Python's."""
    installed = tmp_path / "packages" / "site-packages"
    (installed / "liba-1.0.dist-info").mkdir(parents=True)
    (installed / "liba.py").write_text("WORD = 'one'\n")
    (tmp_path / "agent.py").write_text(ECHO.replace("words", "liba"))
    (tmp_path / "agent_card.json").write_text(Path(CARD).read_text())
    env = environment(COLUMNS="80")
    env["PYTHONPATH"] += f"{os.pathsep}{installed}"
    arguments, output = ("dev", "--port", "0", "--fresh"), tmp_path / "dev.log"
    python = Path(sys.executable)
    with running_with(python, *arguments, env=env, output=output, cwd=tmp_path) as dev:
        url = dev.url
        assert run("send", url, "go").stdout == "one\n"
        (installed / "liba.py").write_text("WORD = 'two, from a newer one'\n")
        (installed / "liba-1.0.dist-info").rename(installed / "liba-1.1.dist-info")
        assert run("send", url, "go").stdout == "two, from a newer one\n"
        assert dev.end() == 0, dev.said()
        said = dev.said()
    assert said.count("the package liba changed: loading the new code") == 1
    assert len(re.findall(r'… turn 1: completed after .*, "go"', said)) == 2


def test_serve(tmp_path: Path) -> None:
    """`serve` is one process that loads the agent once, and asks who may call."""
    (tmp_path / "agent.py").write_text(ECHO)
    (tmp_path / "words.py").write_text("WORD = 'first'\n")
    arguments, output = ("serve", "--port", "0"), tmp_path / "serve.log"
    assert "A2A_AUTH" in run(*arguments, cwd=tmp_path).stderr
    env = environment(A2A_AUTH="none")
    with running(*arguments, env=env, output=output, cwd=tmp_path) as serving:
        url = serving.url
        (tmp_path / "words.py").write_text("WORD = 'second'\n")
        assert run("send", url, "go").stdout == "first\n"
        assert serving.end() == 0


CLASS = f"{HEAD}\nclass Agent(Worker):\n    async def handle(self, ctx)"
FORGOTTEN = ":\n        ctx.send_status('lost')  # here\n        await ctx.complete('done')\n"
REPAIR = r"expected ':' .*Repair it, and send the message again\."
IMPORT = "WORD = 'x'\n\nimport reqeusts  # here\n"
MISTAKES = (
    ("agent.py", f"{CLASS}{FORGOTTEN}agent = Agent()\n", r"write `await ctx\.send_status\(…\)`"),
    ("agent.py", f"{CLASS}  # here\n\nagent = Agent()\n", REPAIR),
    ("words.py", IMPORT, "correct the import, or install the package"),
)
"""Files with what authors do wrong, and what they are told; tests/unit has all kinds."""


def says(edited: Dev, since: int, *patterns: str) -> bool:
    return all(re.search(pattern, edited.command.said()[since:]) for pattern in patterns)


@pytest.mark.long
def test_mistakes_are_named(tmp_path: Path) -> None:
    """What `dev` says of each has the file, the line and the way out."""
    with dev(tmp_path) as edited:
        for name, text, way_out in MISTAKES:
            since = len(edited.command.said())
            (tmp_path / name).write_text(text)
            assert "first" not in json.dumps(edited.send())
            line = text[: text.index("# here")].count("\n") + 1
            place = rf"{re.escape(name)}(, line |:){line}\b"
            until(partial(says, edited, since, place, way_out))
            (tmp_path / "agent.py").write_text(ECHO)
            (tmp_path / "words.py").write_text("WORD = 'first'\n")
