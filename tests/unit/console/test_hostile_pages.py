"""What a client or an agent has written cannot mislead who reads the console, nor keep it busy."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from a2a.types import Artifact, Message, Part, Role, SendMessageRequest, TaskState, TaskStatus
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Caller, Entry, StatusChanged
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.console.events import MOST_OF_AN_EVENT
from a2a_serverless_tools.console.paging import MOST_OF_ALL
from a2a_serverless_tools.console.parts import MOST_TEXT, _html_of
from a2a_serverless_tools.console.rendering import visible
from a2a_serverless_tools.console.wire import Wire
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lists import PAGE
from tests.support.commits import INPUT_REQUIRED, status
from tests.support.databases import moto_database
from tests.support.messages import request
from tests.unit.console.conftest import ANN, OWN, Person, linked, live_of, visited

TURNED = "invoice\u202efdp.exe"
"""A name that a browser shows as invoiceexe.pdf, and what stands behind it backwards."""


@pytest.fixture
async def person(storage: DurableStorage) -> AsyncIterator[Person]:
    inspector = Inspector(storage, Settings(), place="the table Tasks-Prod")
    async with visited(inspector, endpoint="http://127.0.0.1:9") as one:
        yield one


async def written(storage: DurableStorage, *entries: Entry, user: str = "ann") -> str:
    """The path of a task with a commit of these entries."""
    said = SendMessageRequest(message=Message(message_id="m", parts=[Part(text="hello")]))
    opening = await storage.open_task("c", said, task_id="t", caller=Caller(user))
    await storage.commit(opening.head, Commit(entries=entries, token="a", claims=True))
    return f"/_console/task/{ANN.digest}/t"


def artifact(*parts: Part, name: str = "a") -> ArtifactWritten:
    return ArtifactWritten(Artifact(artifact_id=name, name=name, parts=parts))


def told(text: str) -> StatusChanged:
    message = Message(message_id="s", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message)
    return StatusChanged(status, archive=True)


async def test_a_question_without_words(storage: DurableStorage, person: Person) -> None:
    """The chat says that the agent waits, and its form names the task."""
    await written(storage, status(INPUT_REQUIRED))
    text = (await person.get("/_console/chat?context=c")).text
    assert "The agent waits for an answer. Your message answers it." in text
    assert '<input type="hidden" form="say" name="task" value="t">' in text


# -- what misleads -----------------------------------------------------------------------------


async def test_a_link_puts_no_words_on_a_page(storage: DurableStorage, person: Person) -> None:
    """A link in an artifact leads here with the reader's cookie: only own sentences are shown."""
    path = await written(storage)
    for page in (path, "/_console/queues"):
        text = (await person.get(page, params={"said": "Paste your AWS key here"})).text
        assert "AWS key" not in text
        assert 'role="status">' not in text
    done = await person.post(f"{path}/cancel", headers=OWN)
    assert "not+confirmed" not in done.headers["location"]
    assert "it was not confirmed." in (await person.get(done.headers["location"])).text


@pytest.mark.parametrize("view", ["conversation", "timeline", "events"])
async def test_names_turn_nothing_else(storage: DurableStorage, person: Person, view: str) -> None:
    """What turns a line's direction, and what a terminal would obey, is shown as it is written."""
    entries = (
        artifact(Part(raw=b"MZ", filename=TURNED), Part(url=f"https://{TURNED}"), name=TURNED),
        artifact(Part(data=ParseDict({TURNED: "\x1b]52;c;eA==\x07"}, Value())), name="data"),
    )
    path = await written(storage, *entries, user=TURNED)
    text = (await person.get(f"{path}?view={view}")).text
    assert "invoice\\u202efdp.exe" in text
    assert not re.search("[\u202e\x1b\x07]", text)


async def test_texts_keep_their_directions(storage: DurableStorage, person: Person) -> None:
    """A message in Hebrew with an isolated number reads as its author wrote it; so does a place.

    Line ends and tabs of a listing stay, and so does a name in any script, or with an emoji.
    """
    path = await written(storage, told("\u05e9\u05dc\u05d5\u05dd \u2066<b>12</b>\u2069"))
    text = (await person.get(path)).text
    assert "\u05e9\u05dc\u05d5\u05dd \u2066&lt;b&gt;12&lt;/b&gt;\u2069" in text
    missing = (await person.get(f"/_console/task/{ANN.digest}/unknown")).text
    assert "The table Tasks-Prod has no task" in missing
    for shown in ("a\tb\nc", "\u05e9\u05dc\u05d5\u05dd", "👩\u200d💻", "naïve", "a\\u202e"):
        assert visible(shown) == shown
    assert visible("a\x00\x9bb") == "a\\u0000\\u009bb"
    assert visible(None) is None


# -- what keeps it busy ------------------------------------------------------------------------


async def test_a_long_talk_is_shown_from_its_end(storage: DurableStorage, person: Person) -> None:
    """However much an agent has said, a page has a bounded part of it, the newest."""
    path = await written(storage, *(told(f"message {n} {'x' * 99_000}") for n in range(20)))
    text = (await person.get(path)).text
    assert len(text) < MOST_OF_ALL + 2 * MOST_TEXT
    assert ("message 19 x" in text, "message 9 x" in text) == (True, False)
    before = (await person.get(f"{path}{linked(text, 'prev')}")).text
    assert ("message 12 x" in before, "message 13 x" in before) == (True, False)


async def test_an_artifact_of_many_parts_is_cut(storage: DurableStorage, person: Person) -> None:
    """Empty parts count, too: each is an element of the page."""
    files = (Part(raw=b"x", filename=f"file-{number}") for number in range(6_000))
    path = await written(storage, told("before"), artifact(*files))
    text = (await person.get(path)).text
    assert all(it in text for it in ("file-2000", "here: the page is long.", 'rel="prev"')), text
    assert not re.search("file-5000|before</div>", text)


async def test_a_long_name_is_cut(storage: DurableStorage, person: Person) -> None:
    """A file's, an artifact's, and that of a file elsewhere."""
    long = "n" * 50_000
    entry = artifact(Part(raw=b"x", filename=long), Part(url=long), name=long)
    path = await written(storage, entry)
    text = (await person.get(path)).text
    assert "nnn…" in text
    assert len(text) < 20_000


async def test_a_large_event_is_shown_in_part(storage: DurableStorage, person: Person) -> None:
    """Two hundred events of megabytes each would be a page that no browser opens."""
    path = await written(storage, artifact(Part(text="y" * 500_000)), told("small"))
    text = (await person.get(f"{path}?view=events")).text
    assert len(text) < 4 * MOST_OF_AN_EVENT
    assert text.count("a2a-serverless task t --events") == 1


@pytest.mark.long
def test_tables_of_nothing_end() -> None:
    """A row of one character is one of as many cells as the table has columns: four million."""
    table = "|a" * 200 + "|\n" + "|-" * 200 + "|\n" + "|\n" * 320 + "\n"
    html = _html_of(table * 64)
    assert html.startswith("<table>")
    assert len(html) < 3_000_000


def test_columns_are_aligned_by_classes() -> None:
    """The parser's own style attributes are none that the console's policy lets through."""
    html = _html_of("|a|b|c|\n|:-|-:|:-:|\n|1|2|3|\n")
    assert '<td class="left">1</td>' in html
    assert '<td class="right">2</td>' in html
    assert "style" not in html


def test_a_wire_is_remembered_from_its_end() -> None:
    """A page that is asked for three times a second stays small, however much comes."""
    call = Wire()
    for number in range(3_000):
        call.add("came", f"{number} {'z' * 30_000}")
    shown = sum(len(text) for _, text in call.lines)
    assert shown == call.length <= 400_000
    assert call.lines[-1][1].startswith("2999 ")
    assert call.forgotten == 3_000 - len(call.lines)
    short = Wire()
    for _ in range(4_001):
        short.add("came", "")
    assert (len(short.lines), short.forgotten) == (4_000, 1)


@pytest.mark.parametrize("key", ["schlüssel", "Bearer a\u00a0b"])
async def test_a_key_that_no_header_carries(person: Person, key: str) -> None:
    """Such as one with a space that was copied from a web page: a line says that it is not sent."""
    form = {"context": "c", "text": "hi", "key": key}
    answer = await person.post("/_console/chat", data=form, headers=OWN)
    assert answer.status_code == 303
    for path in (answer.headers["location"], "/_console/chat/wire?context=c"):
        text = (await person.get(path)).text
        assert "It was not sent: address and headers have to be plain ASCII." in text
        assert key not in text
    assert "hx-get" not in text


# -- lists -------------------------------------------------------------------------------------


async def test_a_list_keeps_its_owner(person: Person) -> None:
    """What asks again for the rows, counts, filters or pages asks for the same owner's tasks."""
    text = (await person.get("/_console/tasks?user=ann&tenant=acme")).text
    assert "tenant=acme" in live_of(text)
    assert '<input name="tenant" value="acme"' in text
    text = (await person.get(f"/_console/tasks?scope={ANN.digest}")).text
    assert f'<input name="scope" value="{ANN.digest}"' in text


async def test_a_search_is_repeated_seldom(storage: DurableStorage, person: Person) -> None:
    """A list that has looked at more tasks than it shows is read again every 30 s, and says so."""
    for number in range(PAGE + 10):
        await storage.open_task("c", request(), task_id=f"t-{number}")
    often = ("", "user=ann&state=working", "state=failed", "attention=asleep", "state=submitted")
    seldom = ("state=working", "reason=ValueError")
    for asked, seconds in (*((it, 2) for it in often), *((it, 30) for it in seldom)):
        text = (await person.get(f"/_console/tasks?{asked}")).text
        assert f'hx-trigger="every {seconds}s"' in text
        assert f"The rows are read again every {seconds} seconds" in text


@pytest.mark.long
async def test_an_open_list_has_a_bounded_price() -> None:
    """It sends about five requests a second to DynamoDB, however many hours it looks through."""
    with moto_database() as moto:
        inspector = Inspector(moto.storage(), Settings(), place="the table")
        async with visited(inspector, endpoint="http://127.0.0.1:9") as one:
            for asked in ("", "since=day", "since=week&state=working"):
                text = (await one.get(f"/_console/tasks?{asked}")).text
                (every,) = re.findall(r'hx-trigger="every ([0-9]+)s"', text)
                (took,) = re.findall(r"by ([0-9,]+) requests of the table", text)
                requests = int(took.replace(",", ""))
                assert 100 <= requests <= int(every) * 5 < requests + 5
