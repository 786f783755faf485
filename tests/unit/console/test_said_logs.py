"""The pages about a task over random logs: updates, damage and places agree with the whole page."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from a2a.types import TaskState

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller, Entry, Recorded, StepId, TurnOpened
from tests.browser.seeds import chunk, said
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.unit.console.conftest import Person, live_of
from tests.unit.console.test_said import PATH, VIEWS, Writer

ENTRY = re.compile(r'<li id="(\S+)"(.*?)</li>', re.DOTALL)
SAME = re.compile(r'<li id="(\S+)" data-same></li>')


@pytest.fixture
def writer(storage: DurableStorage, clock: ManualClock) -> Writer:
    return Writer(storage, clock)


def updated(before: str, update: str) -> str:
    """The page that a browser has after an update."""
    known = dict(ENTRY.findall(before))
    assert len(known) == len(ENTRY.findall(before)), "an id is there twice"
    return SAME.sub(lambda same: f'<li id="{same[1]}"{known[same[1]]}</li>', update)


def content(html: str) -> str:
    """The entries of a page."""
    return html[html.index("<ol") : html.rindex("</ol>")]


class Story:
    """Commits at random, as an agent, its attempts and its caller may make them."""

    def __init__(self, writer: Writer, seed: int) -> None:
        self.writer = writer
        self.chosen = random.Random(seed)  # noqa: S311 - the same story each time
        self.token = ""
        self.number = 0

    async def go_on(self) -> None:
        self.number += 1
        head = await self.writer.head()
        if not head.turn.is_open:
            self.token = ""
            await self.writer.commit(TurnOpened(request("more"), Caller()))
        elif not self.token or self.chosen.random() < 0.25:
            if self.token and self.chosen.random() < 0.5:
                await self.writer.give_back(self.token, "RuntimeError")
            self.token = f"t{self.number}"
            await self.writer.claim(self.token)
        elif self.chosen.random() < 0.08:
            asks = said(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?")
            await self.writer.commit(asks, token=self.token, ends_turn=True)
        else:
            await self.writer.commit(*self._entries(), token=self.token)

    def _entries(self) -> Iterator[Entry]:
        for _ in range(self.chosen.randrange(1, 4)):
            word = self.chosen.choice(("one ", "two ", "<b>three</b> "))
            match self.chosen.randrange(5):
                case 0 | 1:
                    yield said(TaskState.TASK_STATE_WORKING, word)
                case 4:
                    yield Recorded(StepId("step", "", self.number), "json", b"1")
                case _:
                    name, append = self.chosen.choice("xy"), self.chosen.random() < 0.7
                    yield chunk(word, name, append=append)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", range(3))
async def test_updates_lead_to_the_whole_page(writer: Writer, person: Person, seed: int) -> None:
    """After each update, and after some that were missed, a browser has what a new page shows."""
    story = Story(writer, seed)
    await writer.open()
    pages = {view: (await person.get(f"{PATH}?view={view}")).text for view in VIEWS}
    for _ in range(14):
        for _ in range(story.chosen.randrange(1, 3)):
            await story.go_on()
        for view, page in pages.items():
            update = (await person.get(live_of(page))).text
            pages[view] = updated(page, update)
            whole = (await person.get(f"{PATH}?view={view}")).text
            assert content(pages[view]) == content(whole)
            assert "data-same" not in whole
