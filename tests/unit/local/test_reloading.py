"""The agent of `dev`: which code a turn runs while its author edits."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskState
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker.agents import TurnAgents
from a2a_serverless_tools.local import own_modules
from a2a_serverless_tools.local.dotenv import Dotenv
from a2a_serverless_tools.local.own_modules import OwnModules
from a2a_serverless_tools.local.reloading import ReloadedAgent, ReloadedCard
from tests.support.workers import Bench, artifact_texts

AGENT = """
from a2a_serverless.worker import Worker
import words
from speech import tones
from places.far import away

class Agent(Worker):
    async def handle(self, ctx):
        said = f"{words.WORD} {tones.TONE} {away.PLACE} 1"
        await ctx.complete(said)

agent = Agent()
"""
EDITS = 200
"""One a millisecond or less, where a thousand a minute are asked for."""
PAUSE_EVERY = 20
"""Edits between which a turn begins."""
BROKEN = ("WORD = (\n", "import nowhere_to_be_found\n", "raise ValueError('no')\n")
RAISING = AGENT.replace("    async def", "    def __init__(self): 1 / 0\n    async def")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An agent with a module, a package, and a package without `__init__.py` beside it."""
    files = {
        "agent.py": AGENT,
        "words.py": "WORD = 'one'\n",
        "speech/__init__.py": "",
        "speech/tones.py": "TONE = 'low'\n",
        "places/far/away.py": "PLACE = 'here'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    path = sys.path[:]
    yield tmp_path
    sys.path[:] = path
    for name in ("words", "speech", "speech.tones", "places", "places.far", "places.far.away"):
        sys.modules.pop(name, None)


@pytest.fixture
def agents(folder: Path) -> Iterator[ReloadedAgent]:
    with ReloadedAgent(f"{folder}/agent.py:agent") as reloaded:
        yield reloaded


@pytest.fixture
def keeping(folder: Path) -> Iterator[ReloadedAgent]:
    """The agents of `dev --keep-agent`."""
    with ReloadedAgent(f"{folder}/agent.py:agent", keeps_agent=True) as reloaded:
        yield reloaded


class News(logging.Handler):
    """What is said of the agent, each line by its action."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((vars(record)["action"], record.getMessage()))

    def take(self) -> list[str]:
        """The actions since the last time."""
        actions = [action for action, _ in self.lines]
        self.lines.clear()
        return actions

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.lines)


@pytest.fixture
def news() -> Iterator[News]:
    heard = News()
    logger = logging.getLogger("a2a_serverless_tools.local.reloading")
    logger.setLevel(logging.INFO)
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(logging.NOTSET)


def said(agents: TurnAgents) -> str:
    """The answer of a turn that begins now."""

    async def turn() -> str:
        bench = Bench(agents)
        head = await bench.send()
        assert await bench.work()
        return artifact_texts(await bench.task(head))["final-answer"][0]

    return asyncio.run(turn())


def failed(agents: TurnAgents) -> str:
    """Why the task of a message that comes now has failed, after its one attempt."""

    async def turn() -> str:
        bench = Bench(agents)
        head = await bench.send()
        assert await bench.work()
        task, after = await bench.task(head), await bench.head(head)
        assert task.status.state == TaskState.TASK_STATE_FAILED
        assert after.attempts == 1
        return task.status.message.parts[0].text

    return asyncio.run(turn())


@pytest.mark.parametrize(
    ("file", "text", "answer"),
    [
        ("words.py", "WORD = 'two'\n", "two low here 1"),
        ("speech/tones.py", "TONE = 'sad'\n", "one sad here 1"),
        ("places/far/away.py", "PLACE = 'gone'\n", "one low gone 1"),
        ("agent.py", AGENT.replace(" 1", " 2"), "one low here 2"),
    ],
)
def test_a_turn_runs_the_code_of_the_files(
    agents: ReloadedAgent,
    folder: Path,
    news: News,
    file: str,
    text: str,
    answer: str,
) -> None:
    """Of the agent's file, and of what it imports from its folder; also the same size, at once."""
    environment = agents.environment()
    assert said(environment) == "one low here 1"
    (folder / file).write_text(text)
    assert said(environment) == answer
    assert said(environment) == answer
    assert file in news.text
    assert news.take() == ["agent_reloaded"]


def test_an_edit_of_the_same_time_and_size(agents: ReloadedAgent, folder: Path) -> None:
    """Two edits within a tick of the file system's clock are told apart by the content."""
    words = folder / "words.py"
    environment = agents.environment()
    stamp = time.time_ns() + 3600 * 10**9  # it is young, however busy the machine is
    for word in ("two", "six"):
        words.write_text(f"WORD = '{word}'\n")
        os.utime(words, ns=(stamp, stamp))
        assert said(environment).startswith(word)


def test_each_environment_has_its_own_agent(agents: ReloadedAgent, folder: Path) -> None:
    """As on Lambda; an edit reaches each with its next turn."""
    one, two = agents.environment(), agents.environment()
    assert one.for_turn() is one.for_turn()
    assert one.for_turn() is not two.for_turn()
    (folder / "words.py").write_text("WORD = 'two'\n")
    assert said(one) == said(two) == "two low here 1"
    assert one.for_turn() is not two.for_turn()


@pytest.mark.parametrize(
    ("file", "broken", "reason"),
    [
        ("words.py", BROKEN[0], r"'\(' was never closed \(\S+words\.py, line 1\)"),
        ("words.py", BROKEN[1], r"words\.py, line 1\): correct the import, or install the package"),
        ("words.py", BROKEN[2], r"ValueError: no \(\S+words\.py, line 1\)"),
        ("agent.py", "# nothing yet\n", r"agent\.py has no 'agent'"),
        ("agent.py", RAISING, r"division by zero \(\S+agent\.py, line 8\)"),
        ("words.py", None, r"No module named 'words' \(\S+agent\.py, line 3\)"),
        ("agent.py", None, r"there is no file \S+agent\.py"),
    ],
)
def test_a_broken_edit(
    agents: ReloadedAgent, folder: Path, news: News, file: str, broken: str | None, reason: str
) -> None:
    """Tasks fail at their first attempt with place, cause and way out; the repair counts at once.

    Meanwhile Python has the modules before, which turns that run may still import.
    """
    environment, before = agents.environment(), (folder / file).read_text()
    assert said(environment) == "one low here 1"
    (folder / file).unlink() if broken is None else (folder / file).write_text(broken)
    for each in (environment, environment, agents.environment()):
        why = failed(each)
        assert re.search(reason, why)
        assert why.endswith(". Repair it, and send the message again.")
        assert sys.modules["words"].WORD == "one"
    assert news.take() == []
    (folder / file).write_text(before.replace("'one'", "'two'").replace(" 1", " 2"))
    assert said(environment) in {"two low here 1", "one low here 2"}
    assert news.take() == ["agent_reloaded"]


def test_the_block_of_a_broken_edit_has_no_line_of_the_runtime(
    agents: ReloadedAgent, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What raises the reason is no line of the author's, wherever the runtime is installed."""
    (folder / "words.py").write_text(BROKEN[1])
    assert "words.py, line 1" in failed(agents.environment())
    (said,) = [one.getMessage() for one in caplog.records if "Task failed" in one.getMessage()]
    assert "words.py, line 1" in said
    assert "reloading.py" not in said


def test_what_is_mended_without_an_edit(folder: Path, tmp_path: Path, news: News) -> None:
    """A package that is installed meanwhile, as by `make lock`, counts for the next message."""
    packages = tmp_path / "elsewhere"
    packages.mkdir()
    sys.path.insert(0, str(packages))
    with ReloadedAgent(f"{folder}/agent.py:agent") as agents:
        environment = agents.environment()
        (folder / "words.py").write_text("from installed_meanwhile import WORD\n")
        assert "No module named 'installed_meanwhile'" in failed(environment)
        (packages / "installed_meanwhile.py").write_text("WORD = 'two'\n")
        assert said(environment) == "two low here 1"
    assert "It can be loaded again: turns that begin now run the agent of" in news.text
    sys.modules.pop("installed_meanwhile")


async def test_a_cancel_while_nothing_can_be_loaded(agents: ReloadedAgent, folder: Path) -> None:
    """The task is canceled, without the agent."""
    (folder / "agent.py").write_text(AGENT.replace("complete(said)", "request_input('which?')"))
    bench = Bench(agents.environment())
    head = await bench.send()
    assert await bench.work()
    (folder / "agent.py").write_text(BROKEN[0])
    await bench.cancel(await bench.head(head))
    assert await bench.work()
    assert (await bench.task(head)).status.state == TaskState.TASK_STATE_CANCELED


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_edit_with_an_agent_that_is_kept(
    keeping: ReloadedAgent, folder: Path, news: News, broken: str
) -> None:
    """It is reported once, with file and line; the last good agent goes on, also for new ones."""
    environment = keeping.environment()
    (folder / "words.py").write_text(broken)
    assert {said(environment) for _ in range(3)} == {"one low here 1"}
    assert said(keeping.environment()) == "one low here 1"
    assert "words.py, line 1)" in news.text
    assert "goes on, until this one can be loaded." in news.text
    assert news.take() == ["agent_kept"]
    (folder / "words.py").write_text(broken + "\n")
    assert said(environment) == "one low here 1"
    assert news.take() == ["agent_kept"]
    (folder / "words.py").write_text("WORD = 'two'\n")
    assert said(environment) == "two low here 1"
    assert news.take() == ["agent_reloaded"]


KEYED = AGENT.replace("import words\n", "import os\nimport words\nKEY = os.environ['MODEL_KEY']\n")
KEYED = KEYED.replace("{words.WORD}", "{KEY}")


@pytest.fixture
def keyed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReloadedAgent]:
    """An agent that needs a variable of `.env`, which is there."""
    monkeypatch.delenv("MODEL_KEY", raising=False)
    (folder / "agent.py").write_text(KEYED)
    (folder / ".env").write_text("MODEL_KEY=old\n")
    with ReloadedAgent(f"{folder}/agent.py:agent", variables=Dotenv(folder)) as reloaded:
        yield reloaded
    os.environ.pop("MODEL_KEY", None)


def test_a_change_of_the_order_needs_a_restart(
    agents: ReloadedAgent, folder: Path, news: News
) -> None:
    """The API and the worker keep the order of a conversation as they were started."""
    environment = agents.environment()
    said(environment)
    keeping = AGENT.replace("    async def", "    keeps_conversation = True\n\n    async def", 1)
    (folder / "agent.py").write_text(keeping)
    said(environment)
    assert "restart_needed" in news.take()


def test_variables_that_change(keyed: ReloadedAgent, folder: Path, news: News) -> None:
    """The next turn has the values of `.env` as it is then; without the file, none."""
    environment = keyed.environment()
    assert said(environment) == "old low here 1"
    (folder / ".env").write_text("MODEL_KEY=new\n")
    assert said(environment) == said(keyed.environment()) == "new low here 1"
    assert news.text.startswith(".env changed: turns that begin now")
    assert news.take() == ["agent_reloaded"]
    (folder / ".env").unlink()
    assert "KeyError: 'MODEL_KEY'" in failed(environment)
    (folder / ".env").write_text("MODEL_KEY=back\n")
    assert said(environment) == "back low here 1"


def test_a_variable_that_is_missing(keyed: ReloadedAgent, folder: Path) -> None:
    """The reason names it and `.env`; once it is there, the next turn goes without an edit."""
    environment = keyed.environment()
    (folder / ".env").write_text("# MODEL_KEY=old\n")
    why = failed(environment)
    assert f"KeyError: 'MODEL_KEY' ({folder}/agent.py, line " in why
    assert ": set MODEL_KEY, on your machine in .env, " in why
    (folder / ".env").write_text("MODEL_KEY\n")
    assert f"{folder}/.env, line 1: it is not of the form NAME=value" in failed(environment)
    (folder / ".env").write_text("MODEL_KEY=new\n")
    assert said(environment) == "new low here 1"


async def test_a_card_that_changes(folder: Path, news: News) -> None:
    """The next request has it; a broken one is told once, and the one before is served."""
    card = folder / "card.json"

    def make() -> Starlette:
        text = card.read_text()
        if not text:
            raise ConfigurationError(f"The agent card {card} is not a card.")
        return Starlette(routes=[Route("/", lambda _: PlainTextResponse(text))])

    card.write_text("one")
    transport = httpx.ASGITransport(ReloadedCard(make, [card]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for text, served, actions in (
            ("one", "one", []),
            ("two", "two", ["card_reloaded"]),
            ("", "two", ["card_kept"]),
            ("three", "three", ["card_reloaded"]),
        ):
            card.write_text(text)
            assert [(await http.get("/")).text for _ in range(2)] == [served, served]
            assert news.take() == actions


def test_packages_that_change(
    folder: Path, news: News, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is replaced or removed starts the process anew, once; one more does not."""
    installed = tmp_path / "other" / "site-packages"
    (installed / "liba-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(installed))
    starts: list[None] = []
    with ReloadedAgent(
        f"{folder}/agent.py:agent", start_anew=lambda: starts.append(None)
    ) as reloaded:
        environment = reloaded.environment()
        (installed / "libb-1.0.dist-info").mkdir()
        said(environment)
        assert (starts, news.take()) == ([], [])
        (installed / "liba-1.0.dist-info").rename(installed / "liba-1.1.dist-info")
        for _ in range(2):
            assert type(environment.for_turn()).__name__ == "_NotBegun"
        assert "liba changed in site-packages: dev starts anew" in news.text
        assert (starts, news.take()) == ([None], ["started_anew"])


def test_a_module_that_is_written_after_its_import(agents: ReloadedAgent, folder: Path) -> None:
    """No file of the agent changes when it comes, and the next turn has it."""
    environment = agents.environment()
    (folder / "words.py").write_text("from more_words import WORD\n")
    assert "No module named 'more_words'" in failed(environment)
    (folder / "more_words.py").write_text("WORD = 'two'\n")
    assert said(environment) == "two low here 1"


def test_a_module_that_a_turn_imports(agents: ReloadedAgent, folder: Path) -> None:
    """It counts from then on."""
    environment = agents.environment()
    late = AGENT.replace(
        "        said", "        import late; words.WORD = late.WORD\n        said"
    )
    (folder / "agent.py").write_text(late)
    (folder / "late.py").write_text("WORD = 'two'\n")
    assert said(environment) == "two low here 1"
    (folder / "late.py").write_text("WORD = 'six'\n")
    assert said(environment) == "six low here 1"


def test_a_running_turn_ends_with_its_code(agents: ReloadedAgent, folder: Path) -> None:
    """An edit, and turns that run it, change nothing for a turn that has begun."""
    gated = AGENT.replace(
        "        await", "        while not go.is_set(): await asyncio.sleep(0)\n        await"
    )
    source = "import asyncio\nfrom words import go" + gated.replace("said =", "before =")
    text = source.replace("ctx.complete(said)", "ctx.complete(f'{words.WORD} after {before}')")
    (folder / "words.py").write_text("import asyncio\ngo = asyncio.Event()\nWORD = 'old'\n")
    (folder / "agent.py").write_text(text)

    async def turns() -> tuple[str, str]:
        bench = Bench(agents.environment())
        held = await bench.send()
        working = asyncio.create_task(bench.work())
        while not hasattr(sys.modules.get("words"), "go"):  # noqa: ASYNC110 - the agent's, not ours
            await asyncio.sleep(0)
        go = sys.modules["words"].go
        (folder / "words.py").write_text("WORD = 'new'\n")
        (folder / "agent.py").write_text(AGENT)
        quick = await bench.send()
        assert await bench.work()
        go.set()
        assert await working
        ended = [artifact_texts(await bench.task(each)) for each in (held, quick)]
        return ended[0]["final-answer"][0], ended[1]["final-answer"][0]

    assert asyncio.run(turns()) == ("old after old low here 1", "new low here 1")


def test_edits_without_a_pause(keeping: ReloadedAgent, folder: Path) -> None:
    """Turns beside them run code that was written, in its order, and at the end the last."""
    words = folder / "words.py"
    environment = keeping.environment()

    seen = [0]

    def edit() -> None:
        for number in range(1, EDITS + 1):
            if number % 7 == 0:
                words.unlink()
            bad = BROKEN[number % 3]
            new = folder / "new"
            new.write_text(bad if number % 5 == 1 else f"WORD = {number}\n")
            new.replace(words)
            turns = len(seen)
            while number % PAUSE_EVERY == 0 and len(seen) == turns:
                time.sleep(0.001)

    editor = threading.Thread(target=edit)
    editor.start()
    while editor.is_alive():
        word = said(environment).partition(" ")[0]
        seen.append(int(word) if word != "one" else 0)
    editor.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert said(environment) == f"{EDITS} low here 1"


def test_a_load_that_is_interrupted(agents: ReloadedAgent, folder: Path) -> None:
    """Nothing is lost with it: the agent before it goes on, and the next change counts."""
    environment = agents.environment()
    (folder / "words.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        environment.for_turn()
    assert sys.modules["words"].WORD == "one"
    assert said(environment) == "one low here 1"
    (folder / "words.py").write_text("WORD = 'two'\n")
    assert said(environment) == "two low here 1"


def test_a_turn_that_imports_while_modules_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that run import in threads of their own: the list is of one moment."""
    own = OwnModules(tmp_path, SystemClock())
    own.add("one.two")

    def around(name: str) -> list[str]:
        own.add(f"three.{name}")
        return []

    monkeypatch.setattr(own_modules, "_around", around)
    assert own.loaded() == {}


def test_an_agent_asks_for_the_version_of_a_package(agents: ReloadedAgent, folder: Path) -> None:
    """What Python's finder tells beside modules is told all the same: packages, and their files."""
    words = "import importlib.metadata\nWORD = importlib.metadata.version('pytest')\n"
    (folder / "words.py").write_text(words)
    assert said(agents.environment()) == f"{pytest.__version__} low here 1"


def test_a_file_that_appears_while_it_is_looked_for(
    keeping: ReloadedAgent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No finder behind this one imports it, from bytecode that may be of an older edit."""
    environment = keeping.environment()
    words = folder / "words.py"
    words.unlink()
    find_spec = PathFinder.find_spec

    def late(name: str, *rest: Any) -> ModuleSpec | None:
        spec = find_spec(name, *rest)
        if name == "words" and spec is None:
            words.write_text("WORD = 'two'\n")
        return spec

    monkeypatch.setattr(PathFinder, "find_spec", late)
    assert said(environment) == "one low here 1"
    assert said(environment) == "two low here 1"
    assert not (folder / "__pycache__").exists()


def test_the_modules_of_python_are_not_the_agents() -> None:
    """Its interpreter may be below the folder, as that of an environment of conda."""
    around_python = Path(sysconfig.get_path("stdlib")).parent
    own = OwnModules(around_python, SystemClock())
    spec = own.find_spec("colorsys", None)
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    assert own.find_spec("xml.etree.ElementTree", [f"{around_python}/xml/etree"]) is None


def test_modules_of_others_stay(folder: Path) -> None:
    """What is installed below the folder, and what Python had before, is not loaded again."""
    installed = folder / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_below.py").write_text("VALUE = object()\n")
    sys.path.insert(0, str(installed))
    (folder / "agent.py").write_text("import installed_below, json\n" + AGENT)
    with ReloadedAgent(f"{folder}/agent.py:agent") as agents:
        before = sys.modules["installed_below"]
        environment = agents.environment()
        said(environment)
        (folder / "words.py").write_text("WORD = 'two'\n")
        assert said(environment) == "two low here 1"
        assert sys.modules.pop("installed_below") is before


def test_an_agent_that_cannot_be_loaded_stops_the_start(folder: Path) -> None:
    """As without reloading; imports are Python's again."""
    before = sys.meta_path[:]
    with (
        pytest.raises(ConfigurationError, match="has no 'other'"),
        ReloadedAgent(f"{folder}/agent.py:other"),
    ):
        pass
    assert sys.meta_path == before


def test_the_modules_of_context_variables_stay(folder: Path) -> None:
    """The worker sets the variable that it knows: the agent has to read the same one."""
    (folder / "words.py").write_text(
        "from contextvars import ContextVar\nWORD = ContextVar('word', default='none')\n"
    )
    (folder / "agent.py").write_text(AGENT.replace("{words.WORD}", "{words.WORD.get()}"))
    with ReloadedAgent(f"{folder}/agent.py:agent", kept=["words"]) as agents:
        variable = sys.modules["words"].WORD
        environment = agents.environment()
        token = variable.set("set")
        assert said(environment) == "set low here 1"
        (folder / "speech/tones.py").write_text("TONE = 'sad'\n")
        assert said(environment) == "set sad here 1"
        variable.reset(token)


REMEMBERING = """
from a2a_serverless.worker import Worker

SEEN = []
NAMES = {"a": [1]}

class Agent(Worker):
    count = 0

    def __init__(self):
        self.last = None
        self.client = None

    async def handle(self, ctx):
        SEEN.append(ctx.user_text)
        NAMES["a"].append(2)
        Agent.count += 1
        self.last, self.client = ctx.user_text, object()
        await ctx.complete(f"{len(SEEN)} {len(NAMES['a'])} {Agent.count}")

agent = Agent()
"""


def test_fresh_agents_remember_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each turn begins with the agent's modules anew, and the log names what the last one kept."""
    (folder / "agent.py").write_text(REMEMBERING)
    with ReloadedAgent(f"{folder}/agent.py:agent", is_fresh=True) as agents:
        environment = agents.environment()
        assert [said(environment) for _ in range(3)] == ["1 2 1"] * 3
    kept = [r.getMessage() for r in caplog.records if r.__dict__["action"] == "kept_in_memory"]
    lines = REMEMBERING.splitlines()
    for name, line in (
        ("SEEN", "SEEN = []"),
        ("NAMES", 'NAMES = {"a": [1]}'),
        ("count", "    count = 0"),
        ("last", "        self.last = None"),
    ):
        place = f"{folder}/agent.py, line {lines.index(line) + 1}: "
        (message,) = [each for each in kept if f"`{name}`" in each]
        assert message.startswith(place)
        assert "`await ctx.update_context(…)`" in message
    assert len(kept) == 4


@pytest.mark.parametrize("keeps", [False, True])
def test_a_broken_edit_of_a_fresh_agent(folder: Path, news: News, *, keeps: bool) -> None:
    """Turns fail, or the last agent goes on; after the repair each turn has its own again."""
    with ReloadedAgent(f"{folder}/agent.py:agent", is_fresh=True, keeps_agent=keeps) as agents:
        environment = agents.environment()
        first = environment.for_turn()
        (folder / "words.py").write_text(BROKEN[0])
        for _ in range(2):
            if keeps:
                assert said(environment) == "one low here 1"
            else:
                assert "SyntaxError" in failed(environment)
        assert news.take() == ["agent_kept"] * keeps
        (folder / "words.py").write_text("WORD = 'two'\n")
        assert said(environment) == said(environment) == "two low here 1"
        assert first is not environment.for_turn()
