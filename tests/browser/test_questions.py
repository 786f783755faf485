"""An operator's ten questions: each is answered by the console in three steps at most."""

from __future__ import annotations

import pytest

from a2a_serverless_tools.console import pages
from tests.browser.conftest import chromium, visiting
from tests.browser.questions import ABOUT, DOES, OPENS, asked_site, questions
from tests.support import pages as texts


@pytest.mark.browser
@pytest.mark.long
def test_each_question_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By real tasks: one that failed, one whose attempt was discarded, a webhook, a stuck turn."""
    monkeypatch.setattr(pages, "_WAIT_S", 0)
    with asked_site() as site, chromium() as browser, visiting(browser, site) as visit:
        for question in questions():
            question.answer(visit)
        assert visit.said == []


def test_the_page_has_steps_that_can_be_done() -> None:
    """Each question is a section of the page with its picture, and three steps at the most."""
    found = questions()
    assert [question.name for question in found] == [*ABOUT]
    assert texts.text("questions").count("\n## ") == len(ABOUT) == 10
    assert all(0 < len(question.steps) <= 3 for question in found)
    assert {step for question in found for step in question.steps} == {*DOES, OPENS}
