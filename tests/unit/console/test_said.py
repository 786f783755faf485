"""What the pages about a task say of its log: attempts, places, filters, damage, updates."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Any

import pytest
from a2a.types import Artifact, Part

from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.snapshots import take_snapshot
from a2a_serverless.tasks import rules
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    Recorded,
    StepId,
    TurnOpened,
    Unknown,
)
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.console import paging
from a2a_serverless_tools.console.paging import MOST_ENTRIES
from a2a_serverless_tools.operate import inspector
from a2a_serverless_tools.operate.inspector import Inspector
from tests.browser.seeds import chunk, said
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, WORKING
from tests.support.commits import INPUT_REQUIRED as ASKS
from tests.support.memory import items_of
from tests.support.messages import request
from tests.support.present import present
from tests.unit.console.conftest import ANN, Person, linked, live_of, visited

PATH = f"/_console/task/{ANN.digest}/t"
VIEWS = ("conversation", "events")


@dataclass
class Writer:
    """Writes the log of the task `t`."""

    storage: DurableStorage
    clock: ManualClock

    async def open(self) -> None:
        await self.storage.open_task("c", request(), task_id="t")

    async def begin(self, *entries: Entry) -> None:
        """Open the task, and claim it as `a`, which commits these entries."""
        await self.open()
        await self.claim("a")
        if entries:
            await self.commit(*entries, token="a")

    async def commit(self, *entries: Entry, **options: Any) -> int:
        """Commit entries a second later; return the version."""
        self.clock.advance(1)
        commit = Commit(entries=entries, **options)
        return (await self.storage.commit(await self.head(), commit)).version

    async def head(self) -> Head:
        return present(await self.storage.head("t"))

    async def claim(self, token: str) -> int:
        return await self.commit(token=token, claims=True, worker=f"worker {token}")

    async def give_back(self, token: str, reason: str) -> None:
        now_ms = self.clock.now_ms()
        end = AttemptEnd(token=token, reason=reason, correlation_id=f"c-{token}", at=now_ms)
        assert await self.storage.change(await self.head(), partial(releasing, end=end))


@pytest.fixture
def writer(storage: DurableStorage, clock: ManualClock) -> Writer:
    return Writer(storage, clock)


def plain(html: str) -> str:
    """The text of a page, or of a part of it, as it reads."""
    marked = re.sub(r"<time[^>]*>.*?</time>", "TIME", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", marked)).split())


def talk(html: str) -> list[str]:
    """The entries of a conversation, each as it reads."""
    (shown,) = re.findall(r'<ol class="talk">(.*?)</ol>', html.replace("\n", " "))
    return [plain(one) for one in re.findall(r"<li.*?</li>", shown)]


# -- attempts ------------------------------------------------------------------------------------


async def test_what_a_restart_takes_back_is_not_in_it(writer: Writer, person: Person) -> None:
    """A line says which attempt was discarded, and why; the events have what it said."""
    await writer.begin(said(WORKING, "It is 999 EUR."))
    await writer.commit(chunk("one two", append=False), said(WORKING, "Done soon."), token="a")
    await writer.give_back("a", "RuntimeError")
    await writer.claim("b")
    await writer.commit(said(WORKING, "It is 120 EUR."), token="b")
    told = "attempt 1 is over (gave back: RuntimeError (correlation id c-a)): what it said is"
    assert talk((await person.get(PATH)).text) == [
        "Caller TIME · version 1 hello",
        f"{told} discarded",
        "Agent TIME · version 6 It is 120 EUR.",
    ]
    assert "It is 999 EUR." in (await person.get(f"{PATH}?view=events")).text


async def test_a_restart_at_a_record_takes_back_the_rest(writer: Writer, person: Person) -> None:
    """What came with the record stays; the artifact of both stands as it was at the record."""
    await writer.begin()
    step = Recorded(StepId("plan", "", 1), "json", b"1")
    await writer.commit(said(WORKING, "Planned."), chunk("one ", append=False), step, token="a")
    await writer.commit(chunk("lost "), said(WORKING, "Half of it."), token="a")
    await writer.claim("b")
    await writer.commit(chunk("two "), token="b")
    assert talk((await person.get(PATH)).text) == [
        "Caller TIME · version 1 hello",
        "Agent TIME · version 3 Planned.",
        "Artifact notes TIME · version 3 one two",
        "attempt 1 is over (lost): what it said is discarded",
    ]


async def test_an_attempt_that_said_nothing(writer: Writer, person: Person) -> None:
    """A line says that it is over, and why; an attempt that has slept has no line."""
    await writer.begin()
    await writer.give_back("a", "asleep")
    await writer.claim("b")
    assert "is over" not in (await person.get(PATH)).text
    await writer.commit(said(WORKING, "Hm."), token="b")
    await writer.claim("c")
    await writer.claim("d")
    await writer.commit(said(WORKING, "Aha."), token="d")
    assert talk((await person.get(PATH)).text)[1:] == [
        "attempt 2 is over (lost): what it said is discarded",
        "attempt 3 is over (lost): nothing was discarded",
        "Agent TIME · version 7 Aha.",
    ]


async def test_a_snapshot_changes_nothing(
    writer: Writer, person: Person, storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages read the whole log, also where a snapshot stands for the first turn of a reader."""
    storage.table.blobs = MemoryBlobs(storage.clock)
    monkeypatch.setattr(rules, "SNAPSHOT_BYTES", 1)
    await writer.open()
    for token in ("a", "b"):
        await writer.claim(token)
        await writer.commit(chunk(f"by {token}", append=False), token=token)
    await writer.commit(said(ASKS, "Which?"), token="b", ends_turn=True)
    views = [f"{PATH}?view={view}" for view in VIEWS]
    before = [(await person.get(view)).text for view in views]
    await take_snapshot(storage, await writer.head())
    assert (await writer.head()).snapshot.version == 6
    assert [(await person.get(view)).text for view in views] == before
    async with visited(Inspector(storage, Settings(), place="memory")) as other:
        assert [(await other.get(view)).text for view in views] == before
        await writer.commit(TurnOpened(request("more"), Caller()))
        for token in ("c", "d"):
            await writer.claim(token)
            await writer.commit(chunk(f"by {token}", append=False), token=token)
        said_then = talk((await other.get(PATH)).text)
    assert sum("what it said is discarded" in one for one in said_then) == 2
    assert "Artifact notes TIME · version 5 by d" in said_then


async def test_a_file_is_a_link_with_its_name_and_size(writer: Writer, person: Person) -> None:
    """Also in a message; that of a discarded attempt is not there."""
    await writer.open()
    for token in ("a", "b"):
        await writer.claim(token)
        file = Part(raw=token.encode() * 2_000, filename=f"{token}.bin")
        told = said(WORKING, "See:")
        told.status.message.parts.append(Part(raw=b"x", filename="x.bin"))
        await writer.commit(ArtifactWritten(Artifact(artifact_id="f", parts=[file])), token=token)
        await writer.commit(told, token=token)
    text = (await person.get(PATH)).text
    links = re.findall(r'<a href="([^"]*/part/[^"]*)" download>(.*?)</a> <span[^>]*>(.*?)<', text)
    assert [link[1:] for link in links] == [("b.bin", "2,000 bytes"), ("x.bin", "1 bytes")]
    assert [(await person.get(link[0])).content for link in links] == [b"b" * 2_000, b"x"]
    for path in ("e6-0/1", "e99-0/0", "e1-0/0"):
        assert (await person.get(f"{PATH}/part/{path}")).status_code == 404


async def test_the_signed_address_of_a_file_is_in_no_page(
    storage: DurableStorage, writer: Writer, person: Person, clock: ManualClock
) -> None:
    """The console's own link leads to it, and events have it without what signs it."""
    storage.table.blobs = MemoryBlobs(clock)
    await writer.begin()
    file = Part(raw=b"x" * 300_000, filename="large.bin")
    artifact = Artifact(artifact_id="f", parts=[file])
    stored = await storage.offload(await writer.head(), artifact)
    await writer.commit(ArtifactWritten(stored), token="a")
    said, events = [(await person.get(f"{PATH}?view={view}")).text for view in VIEWS]
    assert "signature" not in said + events
    assert f"{stored.parts[0].url.rpartition('/')[2]}&#34;" in events
    (link,) = re.findall(rf'"({PATH}/part/[^"]*)" download>large.bin</a>', said)
    answer = await person.get(link)
    assert (answer.status_code, "signature=" in answer.headers["location"]) == (303, True)


# -- events --------------------------------------------------------------------------------------


async def test_events_have_borders_between_attempts(writer: Writer, person: Person) -> None:
    """A border names the attempt, its worker and what it discards; each event has its time."""
    await writer.begin(chunk("one", append=False), said(WORKING, "two"))
    await writer.claim("b")
    await writer.commit(chunk("three", append=False), token="b")
    text = (await person.get(f"{PATH}?view=events")).text
    borders = [plain(one) for one in re.findall(r'class="border"><span>(.*?)</span></li>', text)]
    second, first = (border.partition(" · ")[0] for border in borders)
    assert second == "Attempt 2 on worker b , discards 3 events, 2.0 to 3.1"
    assert first == "Attempt 1 on worker a"
    rows = re.findall(r'<li id="(\S+)"( class="discarded")?><div><code class="cursor">', text)
    assert [row for row, _ in rows] == ["v5-0", "v4-0", "v3-1", "v3-0", "v2-0", "v1-0"]
    assert [row for row, gone in rows if gone] == ["v3-1", "v3-0", "v2-0"]
    assert len(re.findall(r"</code><p class=\"dim\"><time", text)) == len(rows)


async def test_events_are_filtered(writer: Writer, person: Person) -> None:
    """By kind and by a text, whatever the case."""
    await writer.begin()
    for number in range(3):
        piece = chunk(f"piece {number}", append=number > 0)
        await writer.commit(piece, said(WORKING, f"Said {number}"), token="a")
    for asked, shown in (
        ("kind=artifact", ["5.0", "4.0", "3.0"]),
        ("kind=message", ["5.1", "4.1", "3.1"]),
        ("kind=status", ["2.0", "1.0"]),
        ("text=said+1", ["4.1"]),
        ("kind=artifact&text=said", []),
    ):
        text = (await person.get(f"{PATH}?view=events&{asked}")).text
        assert re.findall(r'class="cursor">([\d.]+)\.', text) == shown, asked


async def test_a_conversation_is_filtered(writer: Writer, person: Person) -> None:
    """By who said it and by a text, also over the chunks of an artifact."""
    await writer.begin(chunk("once upon"), said(WORKING, "Of kings"))
    await writer.commit(chunk(" a time", append=True), token="a")
    await writer.give_back("a", "ValueError")
    await writer.claim("b")
    await writer.commit(said(WORKING, "Of queens"), chunk("there was"), token="b")
    await writer.commit(chunk(" a queen", append=True), token="b")
    for asked, shown in (
        ("kind=other", ["user", "between", "agent", "artifact"]),
        ("kind=agent", ["agent"]),
        ("text=WAS+a+queen", ["artifact"]),
        ("text=upon+a+time", []),
        ("text=of+q", ["agent"]),
        ("kind=agent&text=of+", ["agent"]),
        ("text=nothing+of+it", []),
    ):
        text = (await person.get(f"{PATH}?view=conversation&{asked}")).text
        assert re.findall(r'<li id="e\d+-\d+" class="(\w+)"', text) == shown, asked
    text = (await person.get(f"{PATH}?view=conversation&text=of+")).text
    assert 'name="text" value="of"' in text
    text = (await person.get(f"{PATH}?view=conversation&kind=agent&text=QUEENS")).text
    await writer.commit(said(WORKING, "of more queens"), said(WORKING, "of aces"), token="b")
    update = (await person.get(live_of(text))).text
    assert re.findall(r'<li id="(\S+)" data-same>', update) == ["e6-0"]
    assert re.findall(r'<li id="(\S+)" class="agent">', update) == ["e8-0"]
    assert "Entries 1 to" not in text
    assert '<form id="which" data-same>' in update
    text = (await person.get(PATH)).text
    assert 'name="text" value=""' in text
    await writer.commit(said(COMPLETED, "Done"), token="b")
    for path in (PATH, live_of(text)):  # of a short one, once its task has ended
        assert 'id="which"' not in (await person.get(path)).text


# -- long tasks ------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize("view", VIEWS)
async def test_a_long_task_is_paged_through(writer: Writer, person: Person, view: str) -> None:
    """It opens at its end; older pages up to the first, and back, have each entry once."""
    await writer.begin()
    for number in range(10):
        if number == 5:
            await writer.commit(said(ASKS), token="a", ends_turn=True)
            await writer.commit(TurnOpened(request("again"), Caller()))
            await writer.claim("b")
        entries = (said(WORKING, f"number {number * 50 + n};") for n in range(50))
        await writer.commit(*entries, token="ab"[number > 4])

    async def pages(rel: str, path: str) -> list[list[int]]:
        found = []
        while path:
            text = (await person.get(path)).text
            found.append(sorted({int(n) for n in re.findall(r"number (\d+);", text)}))
            path = PATH + linked(text, rel) if linked(text, rel) else ""
        return found

    back = await pages("prev", f"{PATH}?view={view}")
    assert max(map(len, back)) <= MOST_ENTRIES
    assert max(back[0]) == 499
    assert sorted(n for page in back for n in page) == list(range(500))
    forth = await pages("next", f"{PATH}?view={view}&after=0.0")
    assert [n for page in forth for n in page] == list(range(500))
    second = (await person.get(f"{PATH}?view={view}&turn=2")).text
    assert min(int(n) for n in re.findall(r"number (\d+);", second)) == 250
    assert '<input name="turn" type="number" min="1" max="2"' in second


async def test_a_place_that_is_none_is_the_end(writer: Writer, person: Person) -> None:
    """A link that was cut, or typed, leads to the newest entries."""
    await writer.open()
    for asked in ("before=x", "after=9.9.9", "turn=99", "turn=-1", "before=" + "9" * 40):
        for view, shown in (("conversation", "hello"), ("events", "v1-0")):
            answer = await person.get(f"{PATH}?view={view}&{asked}")
            assert (answer.status_code, shown in answer.text) == (200, True), asked


async def test_a_search_says_how_far_it_has_looked(
    writer: Writer, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looks among a bounded number of events; a link leads to where it has ended."""
    monkeypatch.setattr(paging, "SEARCHED", 40)
    await writer.begin()
    for number in range(6):
        await writer.commit(*(said(WORKING, f"n{number}-{n}.") for n in range(10)), token="a")
    text = (await person.get(f"{PATH}?view=events&text=n0-3.")).text
    assert "None of these events matches." in text
    assert "Lines 24 to 63 of 63 were looked at" in text
    assert "n0-3." in (await person.get(PATH + linked(text, "prev"))).text


# -- live ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
async def test_an_update_sends_what_has_changed(writer: Writer, person: Person, view: str) -> None:
    """What the page has is a place without content; only new commits are read from the table."""
    await writer.begin(chunk("x" * 90_000, append=False))
    text = (await person.get(f"{PATH}?view={view}")).text
    sent = 0
    for number in range(10):
        await writer.commit(said(WORKING, f"status {number}"), token="a")
        text = (await person.get(live_of(text))).text
        assert f"status {number}" in text
        assert f"status {number - 1}" not in text
        assert text.count("data-same") >= number + 1
        sent += len(text)
    assert sent < 60_000
    whole = (await person.get(live_of(text).partition("&mark")[0])).text
    assert "data-same" not in whole
    assert "status 3" in whole


async def test_an_update_of_another_task_with_the_id_is_whole(
    writer: Writer, person: Person, storage: DurableStorage
) -> None:
    """A page of a task that was deleted and made anew gets all of the new one."""
    await writer.begin(said(WORKING, "of the first"))
    text = (await person.get(PATH)).text
    await delete_task(storage, "t")
    assert (await person.get(live_of(text))).status_code == 404
    await writer.open()
    await writer.claim("b")
    update = (await person.get(live_of(text))).text
    assert "data-same" not in update
    assert "hello" in update
    assert "of the first" not in update


# -- damage ----------------------------------------------------------------------------------------


async def test_what_a_newer_release_has_written_hides_nothing_else(
    writer: Writer, person: Person, storage: DurableStorage
) -> None:
    """An entry is named in its place in both views; a state that is not known hides no log."""
    await writer.begin(said(WORKING, "before"), Unknown(b"Z", 0, b"?"))
    await writer.commit(said(WORKING, "after"), token="a")
    sentence = "Here something is missing: version 3 has an entry of kind 'Z', which this release"
    for is_newer in (False, True):
        if is_newer:
            (head,) = (item for key, item in items_of(storage).items() if key.SK == "HEAD")
            head["state"] = "TASK_STATE_DREAMING"
        for view in VIEWS:
            text = plain((await person.get(f"{PATH}?view={view}")).text)
            assert text.count(sentence) == 1
            assert ("before" in text, "after" in text) == (True, True)
            assert ("a newer release has written HEAD" in text) is is_newer


async def test_a_task_that_is_not_kept_is_read_again(
    writer: Writer, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs beyond what the process keeps are read whole for each page, which is the same."""
    await writer.begin(said(WORKING, "It is 120."))
    kept = (await person.get(PATH)).text
    monkeypatch.setattr(inspector, "_KEPT_BYTES", 1)
    assert [(await person.get(PATH)).text for _ in range(2)] == [kept] * 2


# -- random logs --------------------------------------------------------------------------------

ENTRY = re.compile(r'<li id="(\S+)"(.*?)</li>', re.DOTALL)
SAME = re.compile(r'<li id="(\S+)" data-same></li>')


def updated(before: str, update: str) -> str:
    """The page that a browser has after an update."""
    known = dict(ENTRY.findall(before))
    assert len(known) == len(ENTRY.findall(before)), "an id is there twice"
    return SAME.sub(lambda same: f'<li id="{same[1]}"{known[same[1]]}</li>', update)


def content(html: str) -> str:
    """The entries of a page."""
    return html[html.index("<ol") : html.rindex("</ol>")]


@dataclass
class Story:
    """Commits at random, as an agent, its attempts and its caller may make them."""

    writer: Writer
    chosen: random.Random
    token: str = ""
    number: int = 0

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
            await self.writer.commit(said(ASKS, "Which?"), token=self.token, ends_turn=True)
        else:
            await self.writer.commit(*self._entries(), token=self.token)

    def _entries(self) -> Iterator[Entry]:
        for _ in range(self.chosen.randrange(1, 4)):
            word = self.chosen.choice(("one ", "two ", "<b>three</b> "))
            match self.chosen.randrange(5):
                case 0 | 1:
                    yield said(WORKING, word)
                case 4:
                    yield Recorded(StepId("step", "", self.number), "json", b"1")
                case _:
                    name, append = self.chosen.choice("xy"), self.chosen.random() < 0.7
                    yield chunk(word, name, append=append)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", range(3))
async def test_updates_lead_to_the_whole_page(writer: Writer, person: Person, seed: int) -> None:
    """After each update, and after some that were missed, a browser has what a new page shows."""
    story = Story(writer, random.Random(seed))  # noqa: S311 - the same story each time
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
