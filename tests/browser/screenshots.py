"""The screenshots of docs/pictures: `python -m tests.browser.screenshots`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, Literal

from a2a.types import TaskState
from playwright.sync_api import Browser

from a2a_serverless.tasks.rules import Timing
from tests.browser import seeds
from tests.browser.conftest import Site, Visit, chromium, site_of, visiting
from tests.browser.questions import asked_site, questions, send

FOLDER: Final = Path(__file__).parents[2] / "docs/pictures"
SIZES: Final = {"wide": (1280, 860), "narrow": (400, 860)}
WIDE: Final[dict[str, Any]] = {
    "viewport": {"width": 1280, "height": 860},
    "color_scheme": "light",
}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
EXAMPLES: Final = {
    "questionnaire_worker": ("Hello", "Ann", "Oslo", "Python"),
    "langgraph_agent": ("Delete the drafts", "yes"),
    "pydantic_ai_agent": ("How much is it?", "20 euros", "in JPY"),
}
"""What is said to each example in one task; those whose framework is installed beside the tests."""
PAGES: Final = ("tasks", "conversation", "timeline", "chat", "card")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with site_of(Timing(cancel_s=3600)) as site, asked_site() as asked, chromium() as browser:
        _fill(site)
        for name, (width, height) in SIZES.items():
            for scheme in SCHEMES:
                viewport = {"width": width, "height": height}
                with visiting(browser, site, viewport=viewport, color_scheme=scheme) as visit:
                    for page in PAGES:
                        _open(visit, site, page)
                        visit.page.screenshot(path=FOLDER / f"{page}-{name}-{scheme}.png")
        _questions(browser, asked)
    for name, said in EXAMPLES.items():
        _example(name, said)


def _questions(browser: Browser, site: Site) -> None:
    with visiting(browser, site, **WIDE) as visit:
        for question in questions():
            question.answer(visit)
            visit.page.screenshot(path=FOLDER / f"question-{question.name}.png")


def _example(name: str, said: tuple[str, ...]) -> None:
    agent = FOLDER.parents[1] / "examples" / name / "agent.py"
    with site_of(agent=agent) as site, chromium() as browser:
        ids: dict[str, Any] = {}
        for text in said:
            task = send(site, text, **ids)
            ids = {"taskId": task["id"], "contextId": task["contextId"]}
        with visiting(browser, site, **WIDE) as visit:
            visit.task(site, ids["taskId"])
            visit.page.screenshot(path=FOLDER / f"example-{name}.png")


def _open(visit: Visit, site: Site, page: str) -> None:
    match page:
        case "conversation":
            visit.task(site, "7c41f0d2-ferry-to-the-island")
        case "timeline":
            visit.task(site, "b20e9a77-three-offers", "timeline")
        case "chat":
            visit.go("/chat")
            visit.page.fill("#text", "ask")
            visit.page.press("#text", "Enter")
            visit.page.wait_for_selector("#now:has-text('The agent asks')")
            visit.page.fill("#text", "Saturday")
            visit.page.check("#use-wire")
            visit.page.wait_for_selector(".lines:has-text('The answer is complete')")
        case _:
            visit.go(f"/{page}")
    visit.page.wait_for_load_state("networkidle", timeout=3000) if page == "card" else None


def _fill(site: Site) -> None:
    """Write tasks in every state, the newest last."""
    scribe = site.scribe
    seeds.failing_webhook(scribe, "e1d6c0aa-file-the-invoice")
    head = scribe.begin("44f0b9d8-empty-reply", "Summarise nothing.")
    scribe.wait(20)
    scribe.commit(head, seeds.said(TaskState.TASK_STATE_FAILED, "No."), token="a")
    scribe.wait(400)
    head = scribe.begin("9d8a0f6f-which-day", "Book a table.")
    scribe.commit(head, seeds.said(TaskState.TASK_STATE_INPUT_REQUIRED, "Which day?"), token="a")
    scribe.wait(300)
    seeds.conversation(scribe, "7c41f0d2-ferry-to-the-island")
    scribe.wait(120)
    head = scribe.open("3a6f2b11-stopped-by-hand", "Translate the archive.")
    seeds.done(scribe.storage.request_cancel(head.task_id, by="ann"))
    scribe.commit(head, seeds.said(TaskState.TASK_STATE_CANCELED))
    scribe.wait((time.time_ns() // 1_000_000 - scribe.clock.now_ms()) / 1000 - 110)
    head = seeds.told_slowly(scribe, "b20e9a77-three-offers")
    seeds.done(scribe.storage.request_cancel(head.task_id, by="ann"))


if __name__ == "__main__":
    main()
