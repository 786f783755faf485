"""A real browser on a real stack: Debian's chromium, headless, and `dev` in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.rules import Timing
from a2a_serverless_tools.cli import served
from a2a_serverless_tools.console.app import Console, Sessions
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.operate.logs import kept_lines
from tests.browser.seeds import Scribe
from tests.support.clocks import ManualClock
from tests.support.foreign_clients import install_javascript
from tests.support.required import report_not_run

HERE = Path(__file__).parent
CARD = HERE.parents[1] / "examples/echo_executor/agent_card.json"
PATIENCE_MS = 90_000
"""How long a page may take on a slow machine; nothing waits for it where all goes well."""
expect.set_options(PATIENCE_MS)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report a test as not run where there is no chromium; as failed in the whole run of CI."""
    if CHROMIUM is None and HERE in item.path.parents and item.get_closest_marker("browser"):
        report_not_run("There is no chromium here: apt-get install chromium.")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of axe-core, as the lock of the JavaScript clients has it."""
    folder = install_javascript(tmp_path_factory.mktemp("axe"))
    return folder / "node_modules/axe-core/axe.min.js"


def violations(page: Page, axe: Path) -> dict[str, list[str]]:
    """What the checker axe finds on a page: the elements, by the rule."""
    page.add_script_tag(path=axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return {each["id"]: [node["html"][:200] for node in each["nodes"][:3]] for each in found}


@dataclass
class Site:
    """A running `dev` with its console, and one who writes tasks to its file."""

    stack: Stack
    console: Console
    scribe: Scribe

    @property
    def storage(self) -> DurableStorage:
        return self.scribe.storage


UNSWEPT = Timing(waiting_s=86_400, lease_s=86_400)
"""Of tasks of the past that no sweep sends, so that they stay as they were written."""


@contextmanager
def site_of(
    timing: Timing = UNSWEPT,
    *,
    push: bool = False,
    agent: Path = HERE / "agent.py",
    card: Path = CARD,
    **options: Any,
) -> Iterator[Site]:
    """A `dev` on a free port, with settings; tasks are written in its past, up to now."""
    consoles: list[Console] = []
    given = {"cancel_timeout_s": 1, "push_allowed_hosts": "127.0.0.1", "push_retry_base_s": 1}
    settings = Settings(auth="none", **(given | {"retry_base_s": 0.1} | options))
    with TemporaryDirectory() as folder, kept_lines(Path(folder, "dev.log")) as lines:
        beside = partial(served.beside, consoles, lines, Sessions(Path(folder)))
        how = Options(agent=f"{agent}:agent", card=card, beside=beside, push=push)
        with Stack(settings, how) as stack:
            storage = consoles[0]._inspector.storage
            clock = ManualClock(storage.clock.now_ms() - 3_600_000)
            past = DurableStorage(storage.table, clock=clock, timing=timing)
            yield Site(stack, consoles[0], Scribe(past, clock))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One whose agent takes files: its card is made of its class."""
    with site_of(card=HERE / "agent.py:agent") as running:
        yield running


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run one; its event loop is in this thread."""
    with sync_playwright() as playwright:
        # A container's root cannot have a sandbox; only our pages are opened.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    """Started behind the stack, and ended with the module."""
    with chromium() as started:
        yield started


@dataclass
class Visit:
    """A browser's window on the console, and what it has complained of."""

    page: Page
    context: BrowserContext
    url: str
    said: list[str]
    asked: list[str]
    """The addresses of all requests."""

    def go(self, path: str) -> None:
        self.page.goto(f"{self.url}/_console{path}")

    def task(self, site: Site, task_id: str, view: str = "conversation") -> None:
        self.go(f"/task/{site.storage.scope.digest}/{task_id}?view={view}")


Open = Callable[..., Visit]


@contextmanager
def visiting(browser: Browser, site: Site, **options: object) -> Iterator[Visit]:
    """A person who has opened the printed URL."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    visit = Visit(page, context, site.stack.url, [], [])
    page.on("console", lambda message: visit.said.append(message.text))
    page.on("pageerror", lambda error: visit.said.append(str(error)))
    page.on("request", lambda request: visit.asked.append(request.url))
    page.goto(site.console.open_url())
    try:
        yield visit
    finally:
        context.close()


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Visit]:
    with visiting(browser, site) as one:
        yield one
        assert one.said == []
