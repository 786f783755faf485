"""Every block of code of README, Start and Build is run: a block that nothing runs fails.

Programs in Python are run here or by the test that RUN_BY names. Commands are parsed by what would
take them: our own parser, the Makefiles, the template, and AWS's descriptions of its services.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import botocore.session
import pytest
from a2a.helpers import new_text_message
from a2a.types import Role, SendMessageRequest
from botocore import xform_name

from a2a_serverless.tasks.usage import Prices
from a2a_serverless.worker import HistoryMessage, TaskContext, Worker
from a2a_serverless_tools import cli
from a2a_serverless_tools.testing import AgentBench, Outcome, file_part, step
from tests.e2e.commands import environment, run, running
from tests.e2e.devs import running_dev
from tests.functions.test_api_function import ELSEWHERE
from tests.support import pages
from tests.support.blocks import Block, blocks, commands
from tests.support.handlers import event_file
from tests.support.template import read

ROOT = pages.DOCS.parent
PAGES = [ROOT / "README.md", *sorted(pages.DOCS.glob("start/*.md"))]
PAGES += sorted(pages.DOCS.glob("build/*.md"))
ALL = [block for page in PAGES for block in blocks(page)]

TESTS = (
    ("README", "python", "tests/e2e/test_examples.py"),
    ("calling", "sh python js", "tests/e2e/test_calling.py"),
    ("first-agent", "sh python text", "tests/e2e/test_first_agent.py"),
    ("patterns", "python", "tests/foreign/patterns.py"),
    ("push-receivers", "python", "tests/unit/push/test_documented_check.py"),
    ("stores", "python yaml", "tests/unit/stores/test_page.py"),
    ("uploads", "js python", "tests/javascript/test_uploads.py"),
)
RUN_BY = {(page, one): test for page, languages, test in TESTS for one in languages.split()}
"""The tests that run all blocks of a language of a page."""

PARTS_OF = ("google-adk", "langgraph", "openai-agents", "pydantic-ai", "strands")
EXAMPLES = {page: f"{page.replace('-', '_').removeprefix('google_')}_agent" for page in PARTS_OF}
"""The examples whose parts a page shows; test_frameworks.py runs them with their frameworks."""

NOT_RUN = {
    ("develop", "text"): "what dev prints: tests/unit/cli/test_author_lines.py",
    ("frameworks", "json"): "metadata of a status: tests/unit/frameworks",
    ("model-key", "ini"): "a file of settings",
    ("request-variables", "yaml"): "a setting of the template",
    ("usage", "json"): "a price list: `adviser` reads it",
}
"""What no program takes, by page and language, and why."""

Play = Callable[[dict[str, Any]], None]
PLAYS: dict[tuple[str, int], Play] = {}


def plays(page: str, number: int = 1) -> Callable[[Play], Play]:
    """Name the block in Python, counted on its page, with which a function plays."""

    def keep(play: Play) -> Play:
        PLAYS[page, number] = play
        return play

    return keep


def named(block: Block) -> tuple[str, int]:
    same = [other for other in ALL if other.page == block.page and other.language == "python"]
    return block.page.stem, same.index(block) + 1


@plays("agents")
def parrot(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        run = bench.send([file_part("a.txt", "no text")])
        assert (run.state, run.text) == ("input_required", "What shall I say?")
        assert bench.send("hello").artifacts["final-answer"].text == "hello!"


@plays("stream")
def storyteller(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        run = bench.send("Tell me a story", kill_after=4)
        assert (run.state, run.attempts) == ("completed", 2)
        assert run.artifacts["story"].text == "Once upon a time."
        assert run.progress[-1].done == 4


@plays("ask-back")
def planner(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        asked = bench.send("Plan my Sunday")
        assert (asked.state, asked.text) == ("input_required", "Which city?")
        assert asked.reply("Lisbon").artifacts["final-answer"].text == "A day in Lisbon: ..."


class Bank:
    """What the payer works with; it keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def read(self, text: str) -> dict[str, Any]:
        self.calls.append(text)
        return {"accounts": ["a", "b"], "amount": 12}

    def pay(self, amount: int, account: str) -> str:
        self.calls.append(f"pay {amount}")
        return f"{amount} from {account}"


@plays("waiting")
def payer(names: dict[str, Any]) -> None:
    bank = Bank()
    with AgentBench(names["Payer"](bank)) as bench:
        asked = bench.send("Pay it")
        assert (asked.state, asked.text) == ("input_required", "From which account?")
        run = bench.answer(asked, "b", kill_after=1)
        assert run.artifacts["final-answer"].text == "Paid: 12 from b"
    assert bank.calls == ["Pay it", "pay 12"]


@plays("waiting", 2)
def host(names: dict[str, Any]) -> None:
    with AgentBench(names["Host"]()) as bench:
        again = bench.answer(bench.send("Book a table"), "many")
        assert again.state == "input_required"
        run = bench.answer(again, '{"people": 4}')
        assert run.artifacts["final-answer"].text == "A table for 4"
        late = bench.answer(bench.send("Book a table"), None)
        assert late.artifacts["final-answer"].text == "Nobody has answered: no table was booked."


@plays("waiting", 3)
def booker(names: dict[str, Any]) -> None:
    with AgentBench(names["Booker"]()) as bench:
        run = bench.answer(bench.send("Book it"), {"day": "Friday", "hour": "noon"})
        assert run.artifacts["final-answer"].text == "Booked on Friday at noon"


@plays("calling-agents")
def shop(names: dict[str, Any]) -> None:
    def _bookshop(said: HistoryMessage) -> Outcome:
        is_known = said.text == "soft"
        return Outcome("A book on tea") if is_known else Outcome("Which cover?", "input_required")

    with AgentBench(names["Shop"], agents={"books": _bookshop}) as bench:
        asked = bench.send("tea")
        assert (asked.state, asked.text) == ("input_required", "Which cover?")
        assert bench.answer(asked, "soft").artifacts["final-answer"].text == "A book on tea"


@plays("calling-agents", 2)
def passing_on(names: dict[str, Any]) -> None:
    agents = {"https://books.example": lambda said: f"A book on {said.text}"}
    with AgentBench(names["Host"], agents=agents) as bench:
        assert bench.send("tea").artifacts["book"].text == "A book on tea"


@plays("waiting", 4)
def approver(names: dict[str, Any]) -> None:
    with AgentBench(names["Approver"]) as bench:
        bench.signal("approved", "yes")
        assert bench.send("Buy it").artifacts["final-answer"].text == 'Approved: "yes"'


@plays("waiting", 5)
def poller(names: dict[str, Any]) -> None:
    looks: list[str] = []

    class Exports:
        def start(self, text: str) -> str:
            return f"job of {text}"

        def url_of(self, job: str) -> str | None:
            looks.append(job)
            return "https://export" if len(looks) == 3 else None

    with AgentBench(lambda: names["Exporter"](Exports())) as bench:
        run = bench.send("all", kill_after=step("start"))
        assert run.artifacts["final-answer"].text == "Here it is: https://export"
    assert looks == ["job of all"] * 3


@plays("state")
def counter(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        runs = [bench.send("hello", context_id=context) for context in "aab"]
        answers = [run.artifacts["final-answer"].text for run in runs]
        assert answers == [f"Message {n} of this conversation." for n in (1, 2, 1)]


@plays("files")
def accountant(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        run = bench.send(["Sum it up", file_part("a.txt", "12345"), file_part("b.txt", "678")])
        (artifact,) = (it for it in run.artifacts.values() if it.files)
        assert artifact.files[0].content == b"2 files, 8 bytes\n"


class Library:
    """What the researchers work with; it keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def plan(self, wish: str) -> list[str]:
        self.asked.append("plan")
        return wish.split()

    async def fetch(self, url: str) -> str:
        self.asked.append(url)
        return url.upper()

    def export(self, pages: list[str]) -> str:
        self.asked.append("export")
        return ",".join(pages)

    def status(self, job: str) -> dict[str, str] | None:
        self.asked.append("status")
        return {"url": f"https://{job}"} if self.asked.count("status") > 1 else None

    def parse(self, page: str) -> None:
        self.asked.append(f"parsed {page}")


@plays("long-work")
def researcher(names: dict[str, Any]) -> None:
    library = Library()
    with AgentBench(lambda: names["Researcher"](library)) as bench:
        begun = bench.clock.monotonic()
        run = bench.send("a b", kill_after=step("start"))
        assert run.artifacts["final-answer"].text == "https://A,B"
        assert sorted(library.asked) == ["a", "b", "export", "plan", "status", "status"]
        assert bench.clock.monotonic() - begun >= 600


@plays("long-work", 2)
def exporter(names: dict[str, Any]) -> None:
    asked: list[str] = []

    class Jobs:
        def start(self, job: str, _: str) -> None:
            asked.append(f"start {job}")

        def look(self, _: str) -> str | None:
            asked.append("look")
            return "https://export" if asked.count("look") > 3 else None

        def stop(self, job: str) -> None:
            asked.append(f"stop {job}")

    with AgentBench(lambda: names["Exporter"](Jobs())) as bench:
        run = bench.send("all of it", kill_after=step("start"))
        assert run.artifacts["final-answer"].text == "https://export"
        assert [one.split()[0] for one in asked] == ["start", *["look"] * 4]


@plays("long-work", 3)
def reader(names: dict[str, Any]) -> None:
    library = Library()
    with AgentBench(lambda: names["Reader"](library)) as bench:
        assert bench.send("a b").artifacts["final-answer"].text == "2 pages parsed"
        assert library.asked[2:] == ["parsed A", "parsed B"]


@plays("long-work", 4)
def steps_anywhere(names: dict[str, Any]) -> None:
    class Caller(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(await names["plan"](ctx.user_text))

    with AgentBench(Caller) as bench:
        run = bench.send("Lisbon", kill_after=step("search"))
        assert run.artifacts["final-answer"].text == "a museum in Lisbon"
        assert (run.attempts, run.steps[0]) == (2, "search")


@plays("steps")
def traveller(names: dict[str, Any]) -> None:
    with AgentBench(names["agent"]) as bench:
        run = bench.send("Oslo Rome", kill_after=step("ask", key="Rome"))
        assert run.artifacts["final-answer"].text == "Oslo is sunny, Rome is sunny"
        assert run.attempts == 2


@plays("frameworks")
def tool(names: dict[str, Any]) -> None:
    class Caller(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(await names["search"](ctx.user_text))

    with AgentBench(Caller) as bench:
        run = bench.send("tea")
        assert (run.progress[-1].done, run.state) == (1, "completed")
        assert "Searching tea" in str(run.events)


@plays("usage")
def adviser(names: dict[str, Any]) -> None:
    used = SimpleNamespace(input_tokens=60, output_tokens=1)
    client = AsyncMock()
    client.responses.create.return_value = SimpleNamespace(usage=used, output_text="Buy.")
    with AgentBench(lambda: names["Adviser"](client), task_tokens=50) as bench:
        run = bench.send("Shall I?", kill_after=step("ask"))
        assert (run.artifacts["final-answer"].text, run.usage.tokens) == ("Buy.", 61)
    listed = next(block for block in ALL if kind(block) == ("usage", "json"))
    assert Prices.of(json.loads(listed.source)).currency == "USD"


@plays("testing")
def conftest(names: dict[str, Any]) -> None:
    (plugin,) = names["pytest_plugins"]
    assert {"agent_bench", "fake_files"} <= vars(import_module(plugin)).keys()


@plays("request-variables")
def variable(names: dict[str, Any]) -> None:
    assert names["REQUEST_ID"].get() == "-"


@plays("request-variables", 2)
def middleware(names: dict[str, Any]) -> None:
    async def inner(*_: object) -> None:
        assert names["REQUEST_ID"].get() == "r1"

    scope = {"headers": [(b"x-request-id", b"r1")]}
    asyncio.get_event_loop().run_until_complete(names["SetsRequestId"](inner)(scope, None, None))
    assert names["handler"](event_file("api-agent-card"), None)["statusCode"] == 200


def own_tests(block: Block) -> list[str]:
    return re.findall(r"(?m)^def (test_\w+)", block.source)


def kind(block: Block) -> tuple[str, str]:
    return block.page.stem, block.language


HERE = [block for block in ALL if kind(block) not in RUN_BY | NOT_RUN]
PARTS = [it for it in HERE if it.language == "python" and it.page.stem in EXAMPLES]
PROGRAMS = [it for it in HERE if it.language == "python" and it not in PARTS]
COMMANDS = [it for it in HERE if it.language in {"sh", ""}]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a program finds: its page's folder, an AWS that is not called, the page's module."""
    card = str(ROOT / "functions/api/agent_card.json")
    for name, value in {**ELSEWHERE, "A2A_AUTH": "none", "A2A_CARD": card}.items():
        monkeypatch.setenv(name, value)
    module = ModuleType("request_variables")
    exec(blocks(pages.path("request-variables"))[0].source, vars(module))  # noqa: S102 - our own page
    monkeypatch.setitem(sys.modules, "request_variables", module)
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield {"__file__": str(pages.DOCS / "page.md"), "__name__": "page"}
    asyncio.set_event_loop(None)


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program(block: Block, names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """It runs as it stands: a play uses what it defines, its own tests pass."""
    exec(compile(block.source, str(block), "exec"), names)  # noqa: S102 - our own page
    for name in own_tests(block):
        given = inspect.signature(names[name]).parameters
        names[name](**{it: request.getfixturevalue(it) for it in given})
    if not own_tests(block):
        assert named(block) in PLAYS, f"{block}: nothing runs this program; write a play for it"
        PLAYS[named(block)](names)


@pytest.mark.parametrize("block", PARTS, ids=str)
def test_a_part_of_an_example(block: Block) -> None:
    """Each piece between two empty lines stands in the example, but for its notes to linters."""
    example = ROOT / "examples" / EXAMPLES[block.page.stem] / "agent.py"
    whole = re.sub(r"  # (?:type:|noqa).*", "", example.read_text(encoding="utf-8"))
    pieces = [piece.strip("\n") for piece in block.source.split("\n\n\n")]
    assert [piece for piece in pieces if piece not in whole] == []


BESIDE = ["README", "ask-back", "files"]
"""Pages that show an agent and how to talk to it."""
FOUND = {"TASK": r"--task (\S+)", "CONTEXT": r'"contextId": ?"([^"]+)"'}
"""What a page's words stand for, in what the command before has said."""
ENDS = {0, 3}
"""Exit codes of `send`: the task has completed, or waits for an answer."""


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_typed_beside_a_program(name: str, tmp_path: Path) -> None:
    """`dev` takes the page's agent, and each `send` of the page ends well, by its own words."""
    here = [block for block in ALL if block.page.stem == name]
    program = next(block for block in here if block.language == "python")
    typed = [words for it in here if it in COMMANDS for words in commands(it.source)]
    (tmp_path / "agent.py").write_text(program.source)
    (tmp_path / "notes.txt").write_text("12345")
    found: dict[str, str] = {}
    sends = [words[1:] for words in typed if words[:2] == ["a2a-serverless", "send"]]
    assert sends
    with running_dev(tmp_path, "--agent", "agent.py:agent"):
        for words in sends:
            sent = [found.get(word, word) for word in words]
            done = run(*sent, env=environment(), cwd=tmp_path)
            assert done.returncode in ENDS, (sent, done.stdout, done.stderr)
            for key, pattern in FOUND.items():
                if ids := re.search(pattern, done.stdout + done.stderr):
                    found[key] = ids[1]


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_the_commands(block: Block) -> None:
    """Each is one that its program takes."""
    typed = [*commands(block.source)]
    assert typed, f"{block}: no command"
    for program, *words in typed:
        assert program in PARSERS, f"{block}: {program}: nothing runs this line"
        wrong = PARSERS[program](words)
        assert not wrong, f"{block}: {wrong}"


def test_commands_on_all_other_pages() -> None:
    """What operators type is a command of ours, of SAM, of make, or of AWS's command line."""
    lines = [
        (block, words)
        for page in sorted(pages.DOCS.glob("**/*.md"))
        if page not in PAGES and "reference" not in page.parts
        for block in blocks(page)
        for line in re.split(r"\n(?=\S| *(?:a2a|aws|sam|make))", block.source.replace("\\\n", " "))
        if re.match(r" *([A-Z_]+=\S+ )*(a2a-serverless|aws|make|sam) ", line)
        for words in commands(line)
        if words[0] in PARSERS
    ]
    assert len(lines) > 100
    wrong = [f"{block}: {PARSERS[program](words)}" for block, (program, *words) in lines]
    assert [text for text in wrong if not text.endswith(": ")] == []


def test_every_block_is_run() -> None:
    """A block that is neither a program nor a command is one whose test or reason is named."""
    left = [str(block) for block in HERE if block not in [*PROGRAMS, *PARTS, *COMMANDS]]
    assert left == []


def test_what_is_named_is_there() -> None:
    """No play, reason or test is of a block that has gone; each test reads its page."""
    assert {named(block) for block in PROGRAMS if not own_tests(block)} == PLAYS.keys()
    assert RUN_BY.keys() | NOT_RUN.keys() <= {kind(block) for block in ALL}
    for (page, _), test in RUN_BY.items():
        read = "README.md" if page == "README" else f'pages.path("{page}")'
        assert read in (ROOT / test).read_text(encoding="utf-8"), test


_parser = cache(cli._parser)


def ours(words: list[str]) -> str:
    said = StringIO()
    with suppress(SystemExit), redirect_stderr(said):
        _parser().parse_args(words)
    return said.getvalue()


TARGETS = {
    name
    for path in (ROOT / "Makefile", ROOT / "src/a2a_serverless_tools/scaffold/written/Makefile")
    for name in re.findall(r"(?m)^([a-z-]+):", path.read_text(encoding="utf-8"))
}


def make(words: list[str]) -> str:
    missing = [word for word in words if "=" not in word and word not in TARGETS]
    return f"no target {missing}" if missing else ""


PARAMETERS = read(ROOT / "template.yaml")["Parameters"]


def sam(words: list[str]) -> str:
    """`sam` itself is in no environment of the tests: its options and our parameters are known."""
    command, *options = words
    given = {word.partition("=")[0] for word in options if re.match(r"[A-Z]\w+=", word)}
    known = {option for option in options if option.startswith("--")} <= SAM_OPTIONS
    known &= command in {"build", "delete", "deploy", "validate"}
    return "" if known and given <= PARAMETERS.keys() else f"sam {words}"


SAM_OPTIONS = {"--parameter-overrides", "--config-env", "--guided", "--stack-name"}
model_of = cache(botocore.session.get_session().get_service_model)
waiters_of = cache(botocore.session.get_session().get_waiter_model)
CLI_ALONE = {"cloudformation deploy", "logs tail", "s3 rb", "s3 sync"}
"""What AWS's command line makes of several requests; no description of a service has it."""


def aws(words: list[str]) -> str:
    """What the description of a service does not have: the operation, or one of its parameters."""
    service, command, *options = words
    if f"{service} {command}" in CLI_ALONE:
        return ""
    if command == "wait":
        known = {xform_name(name, "-") for name in waiters_of(service).waiter_names}
        return "" if options[0] in known else f"{service} waits for no {options[0]}"
    model = model_of(service)
    operations = {xform_name(name, "-"): name for name in model.operation_names}
    if command not in operations:
        return f"{service} has no {command}"
    shape = model.operation_model(operations[command]).input_shape
    taken = {xform_name(name, "-") for name in (shape.members if shape else ())}
    given = {re.sub("^--(no-)?", "", option) for option in options if option.startswith("--")}
    return ", ".join(given - taken - {"query", "output", "region"})


def pip(words: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].keys()
    found = re.findall(r"a2a-serverless\[([^]]*)\]", " ".join(words))
    asked = {*",".join(found).split(",")} - {""}
    return "" if words[0] in {"install", "wheel"} and asked <= extras else f"pip {words}"


PARSERS: dict[str, Callable[[list[str]], str]] = {
    "a2a-serverless": ours,
    "make": make,
    "sam": sam,
    "aws": aws,
    "pip": pip,
    **dict.fromkeys(("source", "cd", "docker"), lambda _: ""),
}
"""What takes a command's words and says what is wrong with them."""


KEY = "a-key-of-twenty-letters"


@plays("resuming")
def talk(names: dict[str, Any]) -> None:
    agent = str(ROOT / "functions/worker/agent.py:agent")
    variables = {"A2A_AUTH": "api-key", "A2A_API_KEYS": f"me={KEY}", "AGENT_CHUNK_DELAY_S": "0.02"}
    said = StringIO()
    with TemporaryDirectory() as folder:
        command = ("dev", "--agent", agent, "--port", "0")
        env = environment(no_proxy="*", **variables)
        with running(*command, env=env, output=Path(folder, "dev"), cwd=ROOT) as dev:
            message = new_text_message("Two days in Lisbon", role=Role.ROLE_USER)
            with redirect_stdout(said):
                asyncio.run(names["talk"](dev.url, KEY, SendMessageRequest(message=message)))
    assert said.getvalue().count("# Lisbon in 2 days") == 1
