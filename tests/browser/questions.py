"""An operator's ten questions on the page `questions`: its steps in the console answer each."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Page, expect

from a2a_serverless.tasks.identity import Scope
from tests.browser.agent import INVOICE, OFFERS, ORDER
from tests.browser.conftest import UNSWEPT, Site, Visit, site_of
from tests.browser.seeds import done
from tests.support import pages
from tests.support.a2a_calls import Caller, message
from tests.support.messages import request
from tests.unit.push.receivers import Receiver, status

_LEAVER = "leaver@example.com"

Do = Callable[[Page], None]


def _click(selector: str) -> Do:
    return lambda page: page.locator(selector).first.click()


def _list_of(kind: str) -> Do:
    return _click(f"#numbers a[href*='attention={kind}'][href*='day'], #numbers a[href$='{kind}']")


def _find(page: Page) -> None:
    page.click("nav >> text=Tasks")
    page.fill("#id", OFFERS)
    page.press("#id", "Enter")


def _of_leaver(page: Page) -> None:
    page.click("nav >> text=Tasks")
    page.fill("input[name=user]", _LEAVER)
    page.click("text=Filter")


def _delete(page: Page) -> None:
    page.fill("main input[name=name]", _LEAVER)
    page.click("text=Delete it for good")


def _try_again(page: Page) -> None:
    page.click("summary:has-text('Try it again')")
    page.click("button:has-text('Yes, try it again')")


DOES: dict[str, Do] = {
    "On the first page, follow the number of failures.": _list_of("failed"),
    "On the first page, follow the number of turns sent again.": _list_of("again"),
    "On the first page, follow the number of given-up webhooks.": _list_of("untold"),
    "On the first page, follow the number of completed tasks.": _click(
        "#numbers a[href*='state=completed']"
    ),
    "Under Tasks, find the task by a text of its request.": _find,
    "Open the view Events.": _click("#view-events"),
    "Open the view Timeline.": _click("#view-timeline"),
    "Open the view Cost.": _click("#view-cost"),
    "Choose *Try it again…*, and confirm.": _try_again,
    "Open Journal.": _click("nav >> text=Journal"),
    "Open Queues.": _click("nav >> text=Queues"),
    "Under Tasks, filter by the caller.": _of_leaver,
    "Follow *Delete all that this caller has…*.": _click("text=Delete all that this caller has"),
    "Type the name, and confirm.": _delete,
}
"""What is done in a browser, by the page's words for it."""
OPENS = "Open the task."
"""The step that opens the task of the question."""
ABOUT = {
    "failed": (INVOICE, ("KeyError", "customer")),
    "stuck": ("stuck", ("sent again 12 times", "no worker")),
    "attempt": (OFFERS, ("The best price is 999 EUR.", "discards")),
    "webhook": (ORDER, ("given up", "status 410")),
    "again": (INVOICE, ("retry",)),
    "who": ("", ("retry", "by ")),
    "cost": (OFFERS, ("write units", "attempt")),
    "slow": (OFFERS, ("attempt 1", "attempt 2", "waited")),
    "lost": ("", ("1 open turn", "sent again by the sweeper")),
    "delete": ("", ("Deleted 3 tasks, ", "and no uploads: nothing is left.")),
}
"""A text of the task that each question is about, and texts of the answer."""


@dataclass(frozen=True)
class Question:
    """A section of the page: the name of its picture, and its steps."""

    name: str
    steps: tuple[str, ...]

    def answer(self, visit: Visit) -> None:
        """Take the steps from the first page on; wait for each text of the answer."""
        task, texts = ABOUT[self.name]
        opens = _click(f"#rows tr:has-text('{task}') .main-cell a")
        visit.go("/status")
        for step in self.steps:
            (opens if step == OPENS else DOES[step])(visit.page)
        for text in texts:
            expect(visit.page.locator("main")).to_contain_text(text)


def questions() -> list[Question]:
    return [
        Question(name, tuple(re.findall(r"(?m)^\d\. (.*)", section)))
        for section in pages.text("questions").split("\n## ")[1:]
        for name in re.findall(r"question-(\w+)\.png", section)
    ]


@contextmanager
def asked_site() -> Iterator[Site]:
    with (
        Receiver(lambda _: status(410)) as receiver,
        site_of(UNSWEPT, push=True, max_attempts=2, retry_base_s=0.5) as site,
    ):
        send(site, ORDER, hook=receiver.url())
        send(site, INVOICE)
        send(site, OFFERS)
        done(site.storage.request_cancel(send(site, "wait", waits=False)["id"], by="ann"))
        stuck = site.scribe.open("5c8e2b70-stuck", "Sort the archive.")
        due_at = site.storage.clock.now_ms() + 7_000_000
        assert done(site.storage.postpone(stuck, due_at=due_at, sends=12))
        leaver = site.storage.for_scope(Scope.of("", _LEAVER))
        for number in range(3):
            done(leaver.open_task("c", request(), task_id=f"of-leaver-{number}"))
        yield site


def send(site: Site, text: str, *, hook: str = "", waits: bool = True, **ids: str) -> Any:
    """A task that is sent a message, whose `ids` it may be."""
    with Caller(site.stack.url) as caller:
        said = message(text, messageId=uuid.uuid4().hex, **ids)
        hooks = {"taskPushNotificationConfig": {"id": "crm", "url": hook}} if hook else {}
        sent = {"message": said, "configuration": hooks | {"returnImmediately": not waits}}
        return caller.http.post("/message:send", json=sent).json()["task"]
