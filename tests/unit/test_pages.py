"""What pages say: of an agent's `ctx`, of peers, of gaps, of threats and of contributions."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

import a2a_serverless
import a2a_serverless_tools
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.storage.blobs import Blobs
from a2a_serverless.storage.table import Streamed, Table
from a2a_serverless.worker import TaskContext
from a2a_serverless_tools.cli.arguments import Parser
from tests.cloud.documented import PARTS, scripts
from tests.support import commands, pages

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_the_page_on_agents_names_all_of_ctx() -> None:
    """The table of the page `agents` has what an agent finds at its `ctx`, and nothing else."""
    page = pages.text("agents")
    table = page.split("| what | methods |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)(?:\(\))?`", table)
    assert sorted(named) == [name for name in dir(TaskContext) if not name.startswith("_")]


MOST_WORDS = {"reference": 28_500, "others": 75_000}
"""Of docs/reference, and of all other pages; lower the number when pages get shorter."""


def test_the_pages_keep_to_their_budgets_of_words() -> None:
    """Words are what spaces separate, in text, tables and code: as `wc -w` counts them."""
    words = dict.fromkeys(MOST_WORDS, 0)
    for page in ROOT.glob("docs/**/*.md"):
        part = "reference" if "reference" in page.parts else "others"
        words[part] += len(page.read_text(encoding="utf-8").split())
    assert [part for part, most in MOST_WORDS.items() if words[part] > most] == [], words


PEERS = re.compile(
    r"a2akit|fasta2a|AgentCore|SDK cluster|SDK's (?:cluster|server)|[Dd]urable functions|Temporal\b"
    r"|Restate\b|DBOS|Inngest"
)
LINK = re.compile(
    r"\]\((?:https://[^)]+|[^)]*(?:benchmarks|agentcore|durable-execution)\.md[^)]*)\)|\[\d\]"
)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b|\b[A-Z][a-z]+ 20\d\d\b")


def chapters(page: Path) -> dict[str, str]:
    """A page's chapters of the second level, by their titles; what stands before them is ''."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    first, *others = re.split(r"^## ", text, flags=re.MULTILINE)
    return {"": first, **{title: body for title, _, body in (it.partition("\n") for it in others)}}


def unsourced(page: Path) -> list[str]:
    """The chapters that name a peer without a link and a date, there, in "Sources" or at first."""
    found = []
    parts = chapters(page)
    named = parts[""] if PEERS.search(parts[""]) else ""
    for title, body in parts.items():
        whole = body + parts.get("Sources", "") + named
        if PEERS.search(title + body) and not (LINK.search(whole) and DATE.search(whole)):
            found.append(title)
    return found


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in [ROOT / "README.md", *PAGES]
        # What names peers for what is in this repository needs none.
        if not {"ARCHITECTURE.md", "CONTRIBUTING.md", "decisions", "reference"} & {*page.parts}
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_what_is_said_of_peers_has_source_and_date(page: Path) -> None:
    """Each chapter that names a peer links where that is said or measured, and says when."""
    assert unsourced(page) == []


def test_each_row_on_a_peer_has_source_and_date() -> None:
    """The rows of the tables on other systems have a link and a date, or the number of a source."""
    rows = {
        "durable-execution": (
            12,
            r"(?:Temporal|Restate|DBOS|Inngest|LangGraph|Conductor|Lambda d)",
        ),
        "benchmarks": (6, r"(?:a2akit|LangGraph|SDK)\b[^|]*\(http"),
    }
    for name, (number, pattern) in rows.items():
        told = re.findall(rf"^\| {pattern}.*$", pages.text(name), re.MULTILINE)
        assert len(told) == number, name
        assert all(re.search(r"\]\(https://", row) and DATE.search(row) for row in told), name
    page = pages.text("agentcore")
    table = chapters(pages.path("agentcore"))["What each does"]
    told = [row for row in table.splitlines() if row.startswith("| ")][1:]
    numbers = {number for row in told for number in re.findall(r"\[(\d)\]", row.split(" | ")[1])}
    assert len(told) == sum(bool(re.search(r"\[\d\]", row.split(" | ")[1])) for row in told)
    assert numbers <= set(re.findall(r"^(\d)\. \[[^\]]+\]\(https://", page, re.MULTILINE))


def test_each_gap_of_conformance_has_its_section_and_its_test() -> None:
    """What is not met says where that is asked for, and which test shows what is done instead."""
    rows = re.findall(
        r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", pages.section("What is not met"), re.MULTILINE
    )
    named, *gaps = [row for row in rows if not row[0].startswith("-")]
    assert named == ("section", "what it asks for", "what the server does, and why", "shown by")
    for section, _, _, shown in gaps:
        assert re.match(r"\d+\.\d+|RFC|JSON-RPC 2\.0, \d|0\.3, \d", section), section
        shows = re.findall(r"`([\w/]+\.py)` `(test_\w+)`", shown)
        assert shows, section
        for file, test in shows:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
    sections = " ".join(section for section, *_ in gaps)
    assert all(one in sections for one in ("3.1.2", "3.1.4", "3.2.2", "4.3.3"))


BOTH = pages.text("threats") + pages.text("threats-tools")
THREATS = re.findall(r"^\| (?!attacker and aim \|).+$", BOTH, re.MULTILINE)
NAMING = [*THREATS, *re.split(r"\n\n|\n(?=[|-] )", (ROOT / "SECURITY.md").read_text("utf-8"))]


def test_every_threat_names_a_test() -> None:
    """Every row of the threat model names a test."""
    assert [threat for threat in THREATS if "`tests/" not in threat] == []
    assert len(THREATS) > 15


@pytest.mark.parametrize("text", [it for it in NAMING if "`tests/" in it], ids=lambda it: it[2:40])
def test_the_tests_exist(text: str) -> None:
    """Each file is there, and each test is in one of the files of its row or paragraph."""
    files = [ROOT / path for path in re.findall(r"`(tests/[\w/]+\.py)`", text)]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"`(test_\w+)`", text):
        assert re.search(rf"def {name}\(", sources), name


EVERY = [it for part in PARTS for block in commands.blocks(pages.part(part)) for it in block]


@pytest.mark.parametrize("text", commands.left_out())
def test_what_is_left_out_is_documented(text: str) -> None:
    """A row of the table without a command leaves out a later one unseen."""
    assert [command for command in EVERY if text in command]


def test_what_is_run_has_values() -> None:
    """No command that is run has a name or dots in the place of a value."""
    names = ("SCOPE", "MESSAGE", "NAME", "REGION", "ACCOUNT")
    run = [it for _, found in scripts(**dict.fromkeys(names, "value")) for it in found]
    assert len(run) > 30
    placeholder = re.compile(r"…|[ =](?!ID\b|AWSPREVIOUS)[A-Z]{3,}(?![\w=])(?!.*#)")
    assert [it for it in run if placeholder.search(it.partition("  #")[0])] == []


PACKAGES = (Path(a2a_serverless.__file__).parent, Path(a2a_serverless_tools.__file__).parent)


def test_each_folder_has_its_row() -> None:
    """The table of ARCHITECTURE.md has each folder of the two packages, and no other."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"(?m)^\| `(\w+)/` \|", text)
    folders = {path.parent.name for package in PACKAGES for path in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(folders)


def test_a_first_change_touches_four_files_that_exist() -> None:
    """Each example names at most four files, all there but a module that it adds to a folder."""
    examples = re.findall(
        r"(?m)^\| step \| file .*\n\|[-|]+\n((?:\|.*\n)+)", pages.text("first-change")
    )
    assert len(examples) == 3
    for example in examples:
        rows = [row.split(" | ")[1] for row in example.splitlines()]
        assert len(rows) <= 4
        for row in rows:
            path = re.findall(r"`([^`]+)`", row)[-1]
            assert any((folder / path).exists() for folder in (ROOT, *PACKAGES)), row


def test_the_command_of_a_first_change_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The module that the page shows adds its command, which prints a limit."""
    (code,) = re.findall(
        r'(?ms)^    """`a2a-serverless limits.*?^    ADDERS.*?$', pages.text("first-change")
    )
    shown = ModuleType("limits")
    exec(dedent(code), shown.__dict__)  # noqa: S102 - the page is ours
    parser = Parser(prog="a2a-serverless")
    shown.ADDERS["limits"](parser.add_subparsers().add_parser("limits"))
    options = parser.parse_args(["limits"])
    assert (options.run(options), capsys.readouterr().out) == (0, "parts of a message: 500\n")


@pytest.mark.parametrize("needed", [Table, Streamed, Blobs, FifoQueue, Handle])
def test_all_that_a_backend_needs_is_listed(needed: type) -> None:
    """The page `backends` names each method that an author has to write."""
    rows = re.findall(rf"(?m)^\| `{needed.__name__}`.*$", pages.text("backends"))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    inherited = Table.__abstractmethods__ if needed is Streamed else frozenset()
    assert needed.__abstractmethods__ - inherited <= named  # type: ignore[attr-defined]
