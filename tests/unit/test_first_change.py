"""The pages for contributors: a first change, the folders, and what a backend needs."""

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
from a2a_serverless_tools.cli.arguments import Parser
from tests.support import pages

ROOT = Path(__file__).parents[2]
PACKAGES = (Path(a2a_serverless.__file__).parent, Path(a2a_serverless_tools.__file__).parent)


def test_each_folder_has_its_row() -> None:
    """The table of ARCHITECTURE.md has each folder of the two packages, and no other."""
    named = re.findall(
        r"(?m)^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    )
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
    assert options.run(options) == 0
    assert capsys.readouterr().out == "parts of a message: 500\n"


@pytest.mark.parametrize("needed", [Table, Streamed, Blobs, FifoQueue, Handle])
def test_all_that_a_backend_needs_is_listed(needed: type) -> None:
    """The page `backends` names each method that an author has to write."""
    rows = re.findall(rf"(?m)^\| `{needed.__name__}`.*$", pages.text("backends"))
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    inherited = Table.__abstractmethods__ if needed is Streamed else frozenset()
    assert needed.__abstractmethods__ - inherited <= named  # type: ignore[attr-defined]
