"""The page `first-agent`, typed from its top to its end: what it shows is what comes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest

from a2a_serverless_tools.scaffold import project as project_module
from a2a_serverless_tools.scaffold.project import Project, create
from a2a_serverless_tools.scaffold.source import AGENT
from tests.e2e import installed
from tests.e2e.commands import Running, environment, run, running
from tests.e2e.test_calling import unused_port
from tests.e2e.test_projects import IS_LONG
from tests.support import pages
from tests.support.blocks import Block, blocks, commands

SLOW = "asyncio.sleep(5)"
HELD = 'asyncio.sleep(60 if city == "Lisbon" and not __import__("os").path.exists("go") else 0)'
"""Stands for the wait of the page's agent: Lisbon is waited for until the second process runs."""


@dataclass
class Desk:
    """Two terminals: `dev` in one, `send` in the other."""

    folder: Path
    stack: ExitStack
    port: str = field(default_factory=lambda: str(unused_port()))
    devs: list[Running] = field(default_factory=list)
    sends: list[Running] = field(default_factory=list)
    said: str = ""

    def type(self, words: list[str]) -> None:
        match words:
            case ["a2a-serverless", "dev"]:
                self.devs.append(self._start("dev", "--port", self.port))
                self.devs[-1].wait_for("A2A at")
            case ["a2a-serverless", "send", text]:
                self.sends.append(self._start("send", text))
            case ["a2a-serverless", *arguments]:
                done = run(*arguments, env=environment(), cwd=self.folder)
                assert done.returncode == 0, done.stderr
                self.said = done.stdout
            case ["kill", "-9", *_]:
                self.sends[-1].wait_for("Kyoto was lovely")
                (self.folder / "go").touch()
                self.devs[-1].end(signal.SIGKILL)
                self.sends[-1].wait_for("trying again")
            case _:
                assert words[0] in {"source", "cd"}, words

    def _start(self, *arguments: str) -> Running:
        output = self.folder / f"{arguments[0]}-{len(self.devs)}-{len(self.sends)}.log"
        env = environment(PYTHONUNBUFFERED="1", no_proxy="*")
        command = running(*arguments, env=env, output=output, cwd=self.folder)
        return self.stack.enter_context(command)

    def edit(self, source: str) -> None:
        """Write the agent of the page, or its one line."""
        path = self.folder / AGENT
        if line := re.fullmatch(r"( +\w+ = await )(.*\n)", source):
            source, changed = re.subn(rf"(?m)^{line[1]}.*\n", source, path.read_text())
            assert changed == 1
        else:
            assert source.count(SLOW) == 1
            source = source.replace(SLOW, HELD)
        path.write_text(source)

    def shows(self, text: str) -> None:
        """Assert that the last command of the terminal has shown the lines, once and in order."""
        terminal = self.devs[-1] if text.startswith("visiting") else self.sends[-1]
        terminal.wait_for(re.escape(text.splitlines()[-1]))
        # The end of a line of `dev` may come behind what the agent prints: two writes.
        assert re.findall("visiting.*|.*lovely.*", terminal.said()) == text.splitlines()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A project as `init` makes it, but for the locks, for which it would ask an index."""
    monkeypatch.setattr(project_module, "Dependencies", Mock())
    create(tmp_path / "my-agent", Project(agent="worker", name="my-agent"))
    with ExitStack() as stack:
        yield Desk(tmp_path / "my-agent", stack)


def parts() -> tuple[list[Block], list[Block]]:
    """The blocks that install and make the project, and those behind them."""
    found = blocks(pages.path("first-agent"))
    first = next(number for number, block in enumerate(found) if block.language == "python")
    return found[:first], found[first:]


@pytest.mark.long
def test_the_agent_goes_on_after_the_kill(desk: Desk) -> None:
    """Each block behind the installation, in the page's order; Kyoto is visited once."""
    (desk.folder / "go").touch()
    for block in parts()[1]:
        if block.language == "python":
            desk.edit(block.source)
        elif block.language == "text":
            desk.shows(block.source)
            (desk.folder / "go").unlink(missing_ok=True)
        else:
            assert block.language == "sh", block
            for words in commands(block.source):
                desk.type(words)
    first, second = desk.sends
    assert second.process.wait(60) == first.process.wait(60) == 0
    assert [second.said().count(f"{city} was") for city in ("Kyoto", "Lisbon", "Oslo")] == [1] * 3
    assert "visiting Kyoto" not in desk.devs[-1].said()
    assert desk.said.count("completed") == 2
    (task,) = {*re.findall(r"[0-9a-f-]{36}", desk.said.splitlines()[0])}
    shown = run("task", task, env=environment(), cwd=desk.folder).stdout
    assert "attempt 2" in shown
    assert "record of visit [Kyoto]" in shown
    desk.devs[-1].end()


@pytest.mark.long
@pytest.mark.skipif(not IS_LONG, reason="`make projects`: it asks an index")
@pytest.mark.timeout(900)
def test_the_installation(tmp_path: Path) -> None:
    """The blocks before, as they stand, in a copy of nothing but the wheel."""
    build, _, rest = "\n".join(block.source for block in parts()[0]).partition("\n")
    assert build == "make dist"
    installed.built(tmp_path / "dist")
    script = f"set -eu\n{rest}\na2a-serverless --version"
    home = tmp_path / "home"
    home.mkdir()
    said = installed.run(["bash", "-c", script], cwd=tmp_path, HOME=str(home))
    assert said.splitlines()[-1].startswith("a2a-serverless ")
    assert (home / "my-agent" / AGENT).is_file()
