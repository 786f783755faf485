"""`a2a-serverless docs`: the pages of this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from a2a_serverless_tools.cli import main
from a2a_serverless_tools.scaffold import source as packaged
from a2a_serverless_tools.scaffold.pages import found
from a2a_serverless_tools.scaffold.source import ORDER, PAGES, SEARCH, files, source
from tests.support import pages
from tests.support.pages import SEARCHES

PAGE_NAMES = sorted(path.stem for path in files(source(), PAGES))
MESSAGE = re.compile(r"a2a-serverless docs ([a-z][\w-]*)(?:, ([A-Z][^)\"']+)\))?")
"""A page that a message names, and the section of it."""


def test_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each page of docs/ by name and title below its part, in order; the wheel has all of them."""
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    parts = [line for line in lines if line and not line.startswith(" ")]
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == PAGE_NAMES
    assert "  frameworks               Agents of other frameworks" in lines
    order = packaged.page_order(source())
    assert [part for part in order if part in parts] == parts
    assert [name for part in parts for name in order[part] if name in PAGE_NAMES] == names
    assert {*PAGES, ORDER, SEARCH} <= set(packaged.PACKAGED_FILES)


def test_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """As it is, by its name or a message's path; for none a sentence names the list of pages."""
    text = (source() / "docs/build/files.md").read_text(encoding="utf-8")
    for topic in ("files", "files.md", "docs/build/files.md"):
        assert main(["docs", topic]) == 0
        assert capsys.readouterr().out == text
    assert main(["docs", "nothing"]) == 2
    assert capsys.readouterr().err == (
        "a2a-serverless: There is no page nothing: a2a-serverless docs lists all pages, and"
        " a2a-serverless docs --search nothing those about it.\n"
    )


def test_what_readers_look_for_leads_to_its_page() -> None:
    """A search for each of forty terms shows its page first; each synonym is there once."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in files(source(), PAGES)}
    words = packaged.sought(source())
    listed = tomllib.loads((source() / SEARCH).read_text(encoding="utf-8"))
    synonyms = [word.lower() for each in listed.values() for word in each]
    assert set(listed) <= set(PAGE_NAMES)
    assert len(synonyms) == len({*synonyms})
    assert {term: found(texts, term, words)[0] for term in SEARCHES} == SEARCHES


def test_a_search_finds_all_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Words of a page begin as those of the search, in any order; without a page it ends with 1."""
    assert main(["docs", "--search", "POIN", "kill"]) == 0
    assert capsys.readouterr().out.startswith("kill-points  ")
    assert main(["docs", "--search", "fold nowheretobefound"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("No page has all of these words: try fewer.")


@pytest.mark.long
def test_a_browser_gets_pages_whose_links_lead_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to pages and to their headings work in the folder; those to other files are text."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["docs", "files", "--browser"]) == 0
    page = Path(unquote(urlsplit(opened[0]).path))
    written = {path.name: path.read_text(encoding="utf-8") for path in page.parent.glob("*.html")}
    assert written.keys() == {"index.html", *(f"{name}.html" for name in PAGE_NAMES)}
    assert "<table>" in written["files.html"]
    lost = []
    for name, text in written.items():
        for href in re.findall(r'href="([^"]*)"', text):
            where, _, anchor = href.partition("#")
            target = written.get(where or name)
            is_there = target is not None and (not anchor or f'id="{anchor}"' in target)
            if not (is_there or href.startswith("https://")):
                lost.append((name, href))
    assert not lost


def test_pages_and_sections_that_messages_name_are_there() -> None:
    """Those of the package, the layer and the templates, and the table of a new project."""
    root, named, paths = source(), set[tuple[str, str]](), set[str]()
    folders = [root / name for name in ("src", "layers", "functions")]
    texts = [path for folder in folders for path in folder.rglob("*")]
    for path in [*texts, root / "template.yaml", root / "fargate.yaml"]:
        if path.is_file() and path.suffix != ".pyc":
            text = path.read_text(encoding="utf-8")
            paths.update(re.findall(r"\bdocs/[\w/-]+\.md", text))
            named.update(MESSAGE.findall(" ".join(re.sub(r"\"\s*\n\s*f?\"", " ", text).split())))
            if path.match("scaffold/written/README.md"):
                named.update((name, "") for name in re.findall(r"\| `([a-z-]+)` \|\n", text))
    assert {("failed-deployment", "An update that fails"), ("testing", "")} <= named
    assert [name for name in paths if not (root / name).is_file()] == []
    assert {name for name, _ in named} <= set(PAGE_NAMES)
    assert [it for it in named if it[1] and f"## {it[1]}\n" not in pages.text(it[0])] == []
