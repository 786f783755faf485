"""An operator's ten questions: each with the steps in the console that answer it.

The page `questions` has the same steps, and a picture of each answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from playwright.sync_api import Page, expect

from a2a_serverless.tasks.identity import Scope
from tests.browser.agent import INVOICE, OFFERS, ORDER
from tests.browser.conftest import UNSWEPT, Site, Visit, site_of
from tests.browser.seeds import done
from tests.support.messages import request
from tests.unit.push.receivers import Receiver, status

MOST_STEPS = 3
_LEAVER = "leaver@example.com"


@dataclass(frozen=True)
class Step:
    """One step as the page tells it, and the same in a browser."""

    text: str
    do: Callable[[Page], None]


@dataclass(frozen=True)
class Question:
    """A question, the steps that answer it, and texts of the answer."""

    name: str
    asks: str
    steps: tuple[Step, ...]
    answers: tuple[str, ...]

    def answer(self, visit: Visit) -> None:
        """Take the steps from the first page on; wait for each text of the answer."""
        visit.go("/status")
        for step in self.steps:
            step.do(visit.page)
        for text in self.answers:
            expect(visit.page.locator("main")).to_contain_text(text)


def _click(selector: str) -> Callable[[Page], None]:
    return lambda page: page.locator(selector).first.click()


def _list_of(kind: str) -> Callable[[Page], None]:
    return _click(f"#numbers a[href*='attention={kind}'][href*='day'], #numbers a[href$='{kind}']")


def _row(text: str) -> Step:
    return Step("Open the task.", _click(f"#rows tr:has-text('{text}') .main-cell a"))


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


def _confirm(act: str) -> Callable[[Page], None]:
    def confirm(page: Page) -> None:
        page.click(f"summary:has-text('{act}')")
        page.click(f"button:has-text('Yes, {act.lower()}')")

    return confirm


FAILURES = Step("On the first page, follow the number of failures.", _list_of("failed"))

QUESTIONS = (
    Question(
        "failed",
        "Which tasks failed today, and why?",
        (FAILURES, _row(INVOICE)),
        ("KeyError", "customer"),
    ),
    Question(
        "stuck",
        "What is stuck, and who has it?",
        (
            Step("On the first page, follow the number of turns sent again.", _list_of("again")),
            _row("stuck"),
        ),
        ("sent again 12 times", "no worker"),
    ),
    Question(
        "attempt",
        "What did attempt 1 say?",
        (
            Step("Under Tasks, find the task by a text of its request.", _find),
            _row(OFFERS),
            Step("Open the view Events.", _click("#view-events")),
        ),
        ("The best price is 999 EUR.", "discards"),
    ),
    Question(
        "webhook",
        "Why did the webhook not come?",
        (
            Step("On the first page, follow the number of given-up webhooks.", _list_of("untold")),
            _row(ORDER),
            Step("Open the view Timeline.", _click("#view-timeline")),
        ),
        ("given up", "status 410"),
    ),
    Question(
        "again",
        "How do I try a failed task again?",
        (
            FAILURES,
            _row(INVOICE),
            Step("Choose *Try it again…*, and confirm.", _confirm("Try it again")),
        ),
        ("retry",),
    ),
    Question(
        "who",
        "Who did that?",
        (Step("Open Journal.", _click("nav >> text=Journal")),),
        ("retry", "by "),
    ),
    Question(
        "cost",
        "What did it cost?",
        (
            Step("Under Tasks, find the task by a text of its request.", _find),
            _row(OFFERS),
            Step("Open the view Cost.", _click("#view-cost")),
        ),
        ("write units", "attempt"),
    ),
    Question(
        "slow",
        "What is slow?",
        (
            Step(
                "On the first page, follow the number of completed tasks.",
                _click("#numbers a[href*='state=completed']"),
            ),
            _row(OFFERS),
            Step("Open the view Timeline.", _click("#view-timeline")),
        ),
        ("attempt 1", "attempt 2", "waited"),
    ),
    Question(
        "lost",
        "Is anything lost?",
        (Step("Open Queues.", _click("nav >> text=Queues")),),
        ("1 open turn", "sent again by the sweeper"),
    ),
    Question(
        "delete",
        "How do I delete all that a person has?",
        (
            Step("Under Tasks, filter by the caller.", _of_leaver),
            Step(
                "Follow *Delete all that this caller has…*.",
                _click("text=Delete all that this caller has"),
            ),
            Step("Type the name, and confirm.", _delete),
        ),
        ("Deleted 3 tasks, ", "and no uploads: nothing is left."),
    ),
)


@contextmanager
def asked_site() -> Iterator[Site]:
    """A `dev` on which there is something to be asked about."""
    with (
        Receiver(lambda _: status(410)) as receiver,
        site_of(UNSWEPT, push=True, max_attempts=2, retry_base_s=0.5) as site,
    ):
        _send(site, ORDER, hook=receiver.url())
        _send(site, INVOICE)
        _send(site, OFFERS)
        stopped = _send(site, "wait", waits=False)
        done(site.storage.request_cancel(stopped, by="ann"))
        stuck = site.scribe.open("5c8e2b70-stuck", "Sort the archive.")
        due_at = site.storage.clock.now_ms() + 7_000_000
        assert done(site.storage.postpone(stuck, due_at=due_at, sends=12))
        leaver = site.storage.for_scope(Scope.of("", _LEAVER))
        for number in range(3):
            done(leaver.open_task("c", request(), task_id=f"of-leaver-{number}"))
        yield site


def _send(site: Site, text: str, *, hook: str = "", waits: bool = True) -> str:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    hooks = {"taskPushNotificationConfig": {"id": "crm", "url": hook}} if hook else {}
    answer = httpx.post(
        f"{site.stack.url}/message:send",
        json={"message": message, "configuration": hooks | {"returnImmediately": not waits}},
        headers={"A2A-Version": "1.0"},
        timeout=60,
        trust_env=False,
    )
    return str(answer.json()["task"]["id"])
