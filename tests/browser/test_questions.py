"""An operator's ten questions: each is answered by the console in three steps at most."""

from __future__ import annotations

import pytest

from tests.browser.conftest import chromium, visiting
from tests.browser.questions import MOST_STEPS, QUESTIONS, asked_site
from tests.support import pages


@pytest.mark.browser
@pytest.mark.long
def test_each_question_is_answered() -> None:
    """By real tasks: one that failed, one whose attempt was discarded, a webhook, a stuck turn."""
    with asked_site() as site, chromium() as browser, visiting(browser, site) as visit:
        for question in QUESTIONS:
            question.answer(visit)
        assert visit.said == []


def test_the_page_has_these_steps() -> None:
    """Each question is a section of the page `questions`, with its steps and its picture."""
    sections = pages.text("questions").split("\n## ")[1:]
    assert len(QUESTIONS) == len(sections) == 10
    for question, section in zip(QUESTIONS, sections, strict=True):
        title, _, text = section.partition("\n")
        assert title == question.asks
        told = [line[3:] for line in text.splitlines() if line[:1].isdigit() and line[1:3] == ". "]
        assert told == [step.text for step in question.steps]
        assert 0 < len(told) <= MOST_STEPS
        assert f"question-{question.name}.png" in text
