"""The documentation's site in a real browser: read from files, without any network."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS, chromium, violations
from tests.support.pages import SEARCHES
from tests.support.required import report_not_run
from website.places import ROOT, places
from website.search import add_words
from website.site import build

pytestmark = [pytest.mark.browser, pytest.mark.long]

PAGES = ["index", "build/agents", "deploy/deploy", "operate/alarms"]
PAGES += ["understand/guarantees", "reference/task-context"]
TERMS = {
    "restore": "docs/operate/restore.md",
    "guarantees": "docs/understand/guarantees.md",
    "request_input": "docs/reference/task-context.md",
    "A2A_RETRY_MINUTES": "docs/reference/settings-list.md",
    "OidcAudience": "docs/reference/parameters.md",
    "FailedTasksAlarm": "docs/reference/alarm-list.md",
    "TimeToEnd": "docs/reference/metrics.md",
    "dead_letter_failed": "docs/reference/log-actions.md",
    "preflight": "docs/reference/commands.md",
    "UnsupportedOperationError": "docs/reference/errors.md",
}
"""What is looked for, and a page that has to be among the answers."""

TOOL = ROOT / ".venv/tools/zensical/bin/zensical"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, where its environment is."""
    if not TOOL.exists():
        report_not_run("The site's generator is not installed: make docs.")
    configuration = build(tmp_path_factory.mktemp("site") / "site")
    command = [str(TOOL), "build", "--strict", "--config-file", str(configuration)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    add_words(configuration.parent / "site")
    return configuration.parent / "site"


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@contextmanager
def opened(reader: Browser, width: int, scheme: Any = "light") -> Iterator[Page]:
    viewport: Any = {"width": width, "height": 900}
    context = reader.new_context(viewport=viewport, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_pages_are_readable(
    reader: Browser, folder: Path, axe: Path, width: int, scheme: str
) -> None:
    """The checker axe finds nothing; nothing is wider than the window; no other host is asked."""
    asked: list[str] = []
    with opened(reader, width, scheme) as page:
        page.on("request", lambda request: asked.append(request.url))
        for name in PAGES if scheme == "dark" else PAGES[:2]:
            page.goto((folder / f"{name}.html").as_uri())
            expect(page.locator("h1").first).to_be_visible()
            assert violations(page, axe) == {}, name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert [url for url in asked if not url.startswith("file:")] == []


def test_the_search_finds_the_page(reader: Browser, folder: Path) -> None:
    """A name of an interface has its page among the answers; a reader's term has its page first."""
    titles = {place.name: place.title for place in places()}
    staged = {place.path.stem: place.staged.removesuffix(".md") for place in places()}
    with opened(reader, 1440) as page:
        page.goto((folder / "index.html").as_uri())
        page.keyboard.press("Control+k")
        for term, wanted in TERMS.items():
            page.get_by_role("combobox").fill(term)
            found = page.get_by_role("option").filter(has_text=titles[wanted])
            expect(found.first, term).to_be_attached()
        for term, wanted in SEARCHES.items():
            page.get_by_role("combobox").fill(term)
            first = page.get_by_role("option").first
            leads = re.compile(rf"/{staged[wanted]}\.html\?")
            expect(first, term).to_have_attribute("href", leads)


def test_each_link_of_the_site_leads_somewhere(folder: Path) -> None:
    """To a page of the site and to an anchor of it, or to the Web; read from the files."""
    texts = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}
    ids = {path: {*re.findall(r'\bid="?([^"\s>]+)', text)} for path, text in texts.items()}
    lost = []
    for path, text in texts.items():
        if path.name == "404.html":
            continue
        for href in re.findall(r'<(?:a|img|link|script)[^>]+?(?:href|src)="?([^"\s>]+)', text):
            if re.match(r"[a-z]+:", href):
                continue
            where, _, anchor = href.partition("#")
            target = (path.parent / where).resolve() if where else path
            has_anchor = anchor in {"", *ids.get(target, ())} or anchor.startswith(("only-", "__"))
            if not target.exists() or not has_anchor:
                lost.append((path.relative_to(folder).as_posix(), href))
    assert lost == []
