"""A chat of the console: which task a message goes to, and what becomes of one that is refused."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless.tasks.head import Head
from a2a_serverless_tools.console.app import Console
from a2a_serverless_tools.console.chat import Chat
from a2a_serverless_tools.operate.filters import TaskFilter
from tests.unit.console.conftest import ECHO, Dev, developing, posted

ASKING = Path(__file__).parents[2] / "browser/agent.py"
KEY = "k" * 24


@dataclass
class Talk:
    """A conversation in a browser that sends what its page has."""

    person: httpx.Client
    console: Console
    context: str = field(default_factory=lambda: uuid.uuid4().hex)
    shown: str = ""
    """The page as it was seen last."""

    def __post_init__(self) -> None:
        self.path = f"/_console/chat?context={self.context}"
        self.look()

    def look(self) -> str:
        self.shown = self.person.get(self.path, follow_redirects=True).text
        return self.shown

    def until(self, *texts: str, count: int = 1) -> None:
        """Look at the page until each text is so often on it."""
        end = time.monotonic() + 30
        while any(self.look().count(text) < count for text in texts):
            assert time.monotonic() < end, self.shown
            time.sleep(0.02)

    def fields(self) -> dict[str, str]:
        """What the page gives the form of a message, beside what a person writes."""
        found = re.findall(r'form="say" name="(\w+)" value="([^"]*)"', self.shown)
        return {"context": self.context, **dict(found)}

    def say(self, text: str, verb: str = "", **more: Any) -> None:
        form = {**self.fields(), "text": text, **more}
        answer = self.person.post(f"/_console/chat{verb}", data=form)
        assert answer.status_code == 303, answer.text
        self.path = answer.headers["location"]
        self.look()

    def stop(self) -> None:
        self.say("", "/stop")

    def unsent(self) -> str:
        """The text that comes back into the field; empty: none does."""
        found = re.search(r'data-unsent="([^"]*)"', self.shown)
        return html.unescape(found[1]) if found else ""

    def tasks(self) -> int:
        return self.shown.count('<ol class="talk"')

    def wire(self) -> str:
        asked = {"context": self.context}
        return html.unescape(self.person.get("/_console/chat/wire", params=asked).text)


@contextmanager
def opened(dev: Dev) -> Iterator[Talk]:
    stack, console = dev
    own = {"Origin": stack.url}
    with httpx.Client(trust_env=False, base_url=stack.url, timeout=60, headers=own) as person:
        assert person.get(console.open_url()).status_code == 303
        yield Talk(person, console)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    file = tmp_path_factory.mktemp("dev") / "dev.db"
    with developing(file, agent=ASKING, cancel_timeout_s=1) as made:
        yield made


@pytest.fixture
def talk(dev: Dev) -> Iterator[Talk]:
    with opened(dev) as made:
        yield made


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    file = tmp_path_factory.mktemp("keyed") / "dev.db"
    keys = SecretStr(f"ann={KEY},bob={KEY}-of-bob")
    with developing(file, agent=ASKING, auth="api-key", api_keys=keys) as made:
        yield made


def test_an_agent_that_does_not_stream_takes_messages(tmp_path: Path) -> None:
    """The message is sent without a stream, and the page follows the log."""
    card = json.loads((ECHO / "agent_card.json").read_text(encoding="utf-8"))
    card["capabilities"]["streaming"] = False
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card), encoding="utf-8")
    with developing(tmp_path / "dev.db", card=file) as made, opened(made) as talk:
        talk.say("hello there")
        talk.until("completed", "hello there")
        wire = talk.wire()
    assert "/message:send" in wire
    assert '"returnImmediately": true' in wire
    assert "Resume" not in wire


def test_stop_cancels_each_task_that_runs(talk: Talk) -> None:
    """Also the one behind the newest; the button is there while any of them has not ended."""
    for number in (1, 2):
        talk.say("wait")
        talk.until("Waiting until it is canceled.", count=number)
    talk.stop()
    talk.until('<span class="state canceled">', count=2)
    assert "/chat/stop" not in talk.look()


def test_a_call_that_ends_while_its_page_is_read_is_looked_at_again(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that it has made is not on the page yet, so that the page asks again."""
    heads = Chat._heads

    async def before_the_call(self: Chat, where: TaskFilter) -> list[Head]:
        wire = self._wires.get(where.context)
        if wire is None or not wire.is_open:
            return await heads(self, where)
        await asyncio.wait(wire.running)
        return []

    monkeypatch.setattr(Chat, "_heads", before_the_call)
    talk.say("ask")
    assert '<div id="talk" hx-swap="morph" hx-get=' in talk.shown
    talk.until("The agent asks: <b>Which day?</b>")


def test_the_question_of_an_older_task_is_answered(talk: Talk) -> None:
    """While a newer one runs; a message of a page that has not shown the question is no answer."""
    talk.say("ask")
    talk.until("The agent asks: <b>Which day?</b>")
    talk.say("wait", task="", question="")
    talk.until("Waiting until it is canceled.", "The agent asks: <b>Which day?</b>")
    assert talk.fields().keys() == {"context", "scope", "task", "question"}
    talk.say("Monday")
    talk.until("Thank you: Monday")
    assert talk.tasks() == 2
    assert "The agent works." in talk.shown
    talk.stop()
    talk.until('<span class="state canceled">')


def test_a_key_that_is_given_again_answers_the_same_task(keyed: Dev) -> None:
    """Also by another process, which knows the page alone; what another caller has is not shown."""
    with opened(keyed) as talk:
        assert posted(keyed[0].url, "return of bob", key=f"{KEY}-of-bob", context=talk.context)
        talk.say("ask")
        talk.until("has refused it")
        assert talk.unsent() == "ask"
        for number, day in ((1, "Monday"), (2, "Tuesday")):
            talk.say("ask", key=KEY)
            talk.until("The agent asks: <b>Which day?</b>")
            assert talk.unsent() == ""
            if number == 2:
                talk.path = f"/_console/chat?context={talk.context}&scope={talk.fields()['scope']}"
                talk.console._pages._chat._wires.clear()
                talk.until("The agent asks: <b>Which day?</b>")
            talk.say(day, key=KEY)
            talk.until(f"Thank you: {day}")
            assert (talk.tasks(), "of bob" in talk.shown) == (number, False)


def test_the_address_names_the_owner_once_a_task_is_known(keyed: Dev) -> None:
    """An update changes the address of a page that was opened before."""
    with opened(keyed) as talk:
        talk.say("ask", key=KEY)
        talk.until("The agent asks")
        scope = talk.fields()["scope"]
        asked = {"context": talk.context}
        live = talk.person.get("/_console/chat/live", params=asked)
        address = live.headers["HX-Replace-Url"]
        assert address == f"/_console/chat?scope={scope}&context={talk.context}"
        assert talk.person.get("/_console/chat", params=asked).headers["location"] == address
        assert talk.person.get(address).status_code == 200


def test_the_name_of_a_file_is_kept(talk: Talk) -> None:
    """A browser writes a quote as %22; the page and a download have the name as it is."""
    file = '"files"; filename="a%22b 100%25 \u00fc.txt"\r\nContent-Type: text/plain'
    fields = [(f'"{name}"', value) for name, value in {**talk.fields(), "text": "return"}.items()]
    part = "--mark\r\nContent-Disposition: form-data; name={}\r\n\r\n{}\r\n"
    body = "".join(part.format(*field) for field in [*fields, (file, "hi\r\n")]) + "--mark--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=mark"}
    talk.person.post("/_console/chat", content=body.encode(), headers=headers)
    talk.until("a&#34;b 100%25 \u00fc.txt</a>", count=2)
    link = re.findall(r'<p class="file"><a href="([^"]*)"', talk.shown)[0]
    answer = talk.person.get(link)
    assert answer.content == b"hi\r\n"
    told = "attachment; filename*=UTF-8''a%22b%20100%2525%20%C3%BC.txt"
    assert answer.headers["content-disposition"] == told
