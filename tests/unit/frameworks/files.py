"""What each adapter does with the parts of a message, and with the files that its model makes.

An adapter's test makes its agents with a fake model. `Made(seen, file)` makes one: `seen` gets what
the model is sent by each of its requests, all messages of the user, as texts and `(media type,
bytes or URL)`; the model answers "seen", and with `file` it makes that picture, too. It calls the
tool that the user names: "ask" asks, and "tool" does not.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from a2a.helpers import new_data_part
from a2a.server.agent_execution import AgentExecutor
from a2a.types import Part, Task

from a2a_serverless.errors import StateTooLargeError
from a2a_serverless.frameworks.steps import RECORD_TOO_LARGE
from a2a_serverless.storage.layout import context_item
from a2a_serverless.worker import Worker, turn
from tests.support.workers import S, status_text, user_request
from tests.unit.frameworks.talks import Talk, fails, idle, killed_everywhere

PICTURE = bytes(range(256))
DOCUMENT = b"%PDF-1.7 \xff"
URL = "https://example.com/cat.png"
EXAMPLES = Path(__file__).parents[3] / "examples"

LIMIT: Final = 340_000
"""What is kept at most, where that is tested."""

Made = Callable[..., Worker | AgentExecutor]


@dataclass(kw_only=True)
class Play:
    """What the model and the tool of an agent do, and what they have seen."""

    seen: list[Any]
    calls: list[str] = field(default_factory=list)
    file: bytes = b""
    error: Exception | None = None
    work: Callable[[Any], Awaitable[None]] = idle
    text: str = "seen"
    end: str = ""


def taken(seen: list[Any], options: dict[str, Any]) -> Play:
    """Take what is the play's out of the options of an adapter."""
    own = {each.name for each in fields(Play)} & options.keys()
    return Play(seen=seen, **{name: options.pop(name) for name in own})


def raw(content: bytes, media_type: str = "", filename: str = "") -> Part:
    return Part(raw=content, media_type=media_type, filename=filename)


def files_of(task: Task) -> list[tuple[str, str, bytes]]:
    """The files that a client gets: media type, name and bytes."""
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return [(p.media_type, p.filename, p.raw) for p in parts if p.HasField("raw")]


def completed(task: Task) -> Task:
    assert task.status.state == S.TASK_STATE_COMPLETED, task.status
    return task


class NotTakenError(Exception):
    """What a service's library raises of an answer with this status."""

    status_code = 422


async def check_what_the_model_is_sent(made: Made) -> None:
    """Text, data and files in their order, byte for byte; and again in the next task."""
    seen: list[Any] = []
    talk = Talk(made(seen))
    given = [Part(text="Look"), new_data_part({"n": ["é", 3, 0.5]}), raw(PICTURE, "image/png")]
    given += [raw(DOCUMENT, filename="of May.pdf"), Part(text="at these")]
    completed(await talk.show(*given))
    data = '{"n": ["é", 3, 0.5]}'
    first = ["Look", data, ("image/png", PICTURE), ("application/pdf", DOCUMENT)]
    assert seen == [[*first, "at these"]], seen
    completed(await talk.show(raw(PICTURE, "image/jpg; q=1")))
    assert seen[1] == [*first, "at these", ("image/jpeg", PICTURE)], seen[1]
    completed(await talk.show(Part(text="a"), Part(text="b")))
    assert "\n".join(seen[2][len(seen[1]) :]) == "a\nb", seen[2]


async def check_what_is_refused(made: Made) -> None:
    """A sentence names part, adapter and way out; no model is asked, and nothing is remembered."""
    seen: list[Any] = []
    agent: Any = made(seen)
    talk, takes = Talk(agent), agent.takes
    say = f"The {takes.adapter} adapter cannot give the model parts[1] "
    what = raw(b"123", "application/octet-stream", "a.what")
    zipped = raw(bytes(2000), "application/zip")
    refused = [
        (raw(b"", "image/png"), "(image/png, 0 bytes): the part is empty"),
        (raw(PICTURE), "(of no media type, 256 bytes): nothing says what it is"),
        (what, "(application/octet-stream, 3 bytes): nothing says what"),
        (Part(url=URL, media_type="image/png"), "(image/png, a URL): it fetches no URLs"),
        (zipped, "(application/zip, 2,000 bytes): send it as application/msword or"),
        (raw(b"1", "image/tiff"), "(image/tiff, 1 bytes): send it as image/gif or image/jpeg or"),
    ]
    for part, why in refused if takes.media_types is not None else refused[:4]:
        task = await talk.show(Part(text="Look"), part)
        assert task.status.state == S.TASK_STATE_REJECTED, task.status
        assert status_text(task).startswith(say + why), task.status
    assert not seen, seen
    completed(await talk.show(Part(text="hello")))
    assert seen == [["hello"]], seen


async def check_urls(made: Made) -> None:
    """With `urls` the model gets an https URL as it is, and no other URL."""
    seen: list[Any] = []
    talk = Talk(made(seen, urls=True))
    completed(await talk.show(Part(text="Look"), Part(url=URL)))
    assert seen == [["Look", ("image/png", URL)]], seen
    for url in ("http://169.254.170.2/cat.png", "s3://bucket/cat.png", "file:///cat.png"):
        task = await talk.show(Part(url=url))
        assert task.status.state == S.TASK_STATE_REJECTED, task.status
        assert "passes on https URLs alone" in status_text(task), task.status
    assert len(seen) == 1, seen


async def check_an_answer(made: Made) -> None:
    """A question whose answer is a file is asked on: the task waits, and goes on when answered.

    What it has kept may be larger than a conversation, and no larger than a record.
    """
    talk = Talk(made([]))
    large = Part(text="ask"), raw(bytes(LIMIT), "image/png")
    with patch.object(StateTooLargeError, "LIMIT_OFFLOADED", LIMIT):
        task = await talk.show(*large)
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task.status
    with patch.object(turn, "MAX_OFFLOADED_BYTES", LIMIT):
        fails(status_text(await talk.show(*large)), RECORD_TOO_LARGE)
    head, task = await talk.say("ask")
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task.status
    task = await talk.answer(head, user_request(raw(PICTURE, "image/png")))
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task.status
    assert "parts[0] (image/png, 256 bytes) as an answer: answer by text" in status_text(task)
    completed(await talk.answer(head, "yes"))


async def check_a_model_that_refuses(made: Made) -> None:
    """The client reads which files it was sent, after one start; without files it is any error."""
    for error in (ValueError("Documents are not supported"), NotTakenError()):
        seen: list[Any] = []
        talk = Talk(made(seen, error=error), max_attempts=3)
        task = await talk.show(Part(text="Read"), raw(DOCUMENT, "application/pdf"))
        assert task.status.state == S.TASK_STATE_FAILED, task.status
        said = "has refused the message with parts[1] (application/pdf, 10 bytes): send"
        assert said in status_text(task), task.status
        assert len(seen) == 1, seen
    talk = Talk(made([], error=error), max_attempts=1)
    assert "refused" not in status_text((await talk.say("Read"))[1])


async def check_what_the_client_gets(made: Made) -> None:
    """The file is an artifact with its bytes, type and name; the conversation goes on with it."""
    for options in ({}, {"steps": False}):
        talk = Talk(made([], file=PICTURE, **options))
        for _ in range(2):
            task = completed(await talk.show(Part(text="Draw"), raw(DOCUMENT, "application/pdf")))
            assert files_of(task) == [("image/png", "image.png", PICTURE)]


async def check_a_file_too_large_for_a_record(made: Made) -> None:
    """The task fails at once, with a sentence; without steps the client gets the file."""
    large = bytes(LIMIT)
    with patch.object(turn, "MAX_OFFLOADED_BYTES", LIMIT):
        task = await Talk(made([], file=large), max_attempts=3).show(Part(text="Draw"))
    fails(status_text(task), RECORD_TOO_LARGE)
    task = completed(await Talk(made([], file=large, steps=False)).show(Part(text="Draw")))
    assert [content for *_, content in files_of(task)] == [large]


async def check_a_large_file(made: Made) -> None:
    """A file that the conversation cannot keep is answered; the next message gets a sentence."""
    talk = Talk(made([]))
    with patch.object(StateTooLargeError, "LIMIT_OFFLOADED", LIMIT):
        completed(await talk.show(raw(bytes(LIMIT), "image/png")))
        task = await talk.show(Part(text="and now?"))
    assert task.status.state == S.TASK_STATE_FAILED, task.status
    assert "begin another conversation" in status_text(task), task.status


async def check_the_card(made: Made) -> None:
    """The card of the framework's example, with which a project begins, has what it takes."""
    agent: Any = made([])
    framework = agent.takes.adapter.replace("-", "_").removeprefix("google_")
    card = json.loads((EXAMPLES / f"{framework}_agent" / "agent_card.json").read_bytes())
    assert card["defaultInputModes"] == agent.takes.input_modes, agent.takes.input_modes


async def check_deaths(made: Made) -> None:
    """Whichever record an attempt dies at: the model and the client get the same files."""

    async def play(calls: list[str]) -> Any:
        seen: list[Any] = []
        talk = Talk(made(seen, file=PICTURE, calls=calls), max_attempts=3)
        tasks = [await talk.show(Part(text="tool"), raw(PICTURE, "image/png")) for _ in range(2)]
        return [[files_of(completed(task)) for task in tasks], seen[-1]]

    recorded = await killed_everywhere(play)
    assert recorded.count("model") >= 2, recorded


async def check_a_long_conversation(made: Made) -> None:
    """A picture of 5 MB stays in it, and those of 2 MB that the model makes; it is a blob."""
    sent, answer = Random(1).randbytes(5_000_000), Random(2).randbytes(2_000_000)  # noqa: S311
    seen: list[Any] = []
    talk = Talk(made(seen, file=answer), max_attempts=3)
    for text in ("look", "and now?"):
        parts = [Part(text=text), *([raw(sent, "image/png")] if text == "look" else [])]
        assert files_of(completed(await talk.show(*parts))) == [("image/png", "image.png", answer)]
    assert ("image/png", sent) in seen[-1]
    item = await talk.bench.storage.table.get(context_item(talk.bench.storage.scope.digest, "ctx"))
    assert item is not None
    assert (item["form"], len(item["value"]) < 200) == ("blob", True)


CHECKS: Final = tuple(each for name, each in list(globals().items()) if name.startswith("check_"))
"""What holds for each adapter."""
