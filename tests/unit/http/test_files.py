"""Files of any size between clients and agents: what each side sends, gets and stores."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from fastapi import FastAPI

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.blobs import Link, MemoryBlobs
from a2a_serverless.tasks.blobs import Blob, BlobOwner, linked_blob
from a2a_serverless.wiring import Backends
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.a2a_calls import JSONRPC, REST, Agent
from tests.support.clocks import ManualClock
from tests.support.stream_calls import all_events, payload
from tests.support.workers import Bench

LARGE = bytes(range(256)) * 4_000
"""1 MB: more than an item or an answer can hold."""
SMALL = LARGE[:100_000]
TEXT = "ä long text. " * 10_000
NOW = {"returnImmediately": True}


Handle = Callable[[TaskContext], Awaitable[None]]


class Handling(Worker):
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


async def emitting(ctx: TaskContext) -> None:
    """Emit a large picture, a small one, and a long text."""
    await ctx.emit_artifact("large", file_bytes=LARGE, media_type="image/png", filename="ä.png")
    await ctx.emit_artifact("small", file_bytes=SMALL, media_type="image/png")
    await ctx.emit_artifact("text", text=TEXT, last_chunk=True)
    await ctx.respond("done")


async def worked(agent: Agent, backends: Backends, handle: Handle, **sent: Any) -> str:
    """Send a message, and let a worker run its turn; return the task's id."""
    answer = await agent.send(configuration=NOW, **sent)
    assert not answer.reason, answer.message
    bench = Bench(WorkerExecutor(Handling(handle)), backends=backends, retry_base_s=0)
    assert await bench.work()
    return str(answer.task["id"])


def parts_of(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["artifactId"]: each["parts"][0] for each in task.get("artifacts", ())}


def without_query(value: Any) -> Any:
    """A JSON value whose links have lost their signatures."""
    return json.loads(re.sub(r'(/\.blobs/[^?"]+)\?[^"]*', r"\1", json.dumps(value)))


def raw(content: bytes, **fields: Any) -> dict[str, Any]:
    return {"raw": base64.b64encode(content).decode(), **fields}


async def test_a_large_file_is_a_link(
    agent: Agent, backends: Backends, client: httpx.AsyncClient
) -> None:
    """The small file and the text are in the answer, and the link gives the large one's bytes."""
    task_id = await worked(agent, backends, emitting)
    task = (await agent.call("GetTask", {"id": task_id})).task
    parts = parts_of(task)
    assert base64.b64decode(parts["small"]["raw"]) == SMALL
    assert parts["text"]["text"] == TEXT
    large = parts["large"]
    assert (large["mediaType"], large["filename"]) == ("image/png", "ä.png")
    assert large["url"].startswith("http://test/")
    got = await client.get(large["url"])
    assert got.content == LARGE
    assert got.headers["content-type"] == "image/png"
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4.png"
    assert got.headers["content-length"] == str(len(LARGE))


async def test_a_file_is_none_of_the_protocols_answers(
    agent: Agent, backends: Backends, client: httpx.AsyncClient
) -> None:
    """It keeps the type of its link, and a refused link its form, whatever the caller accepts."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_file(io.BytesIO(LARGE), media_type="application/a2a+json")
        await ctx.respond()

    task_id = await worked(agent, backends, handle)
    url = parts_of((await agent.call("GetTask", {"id": task_id})).task)["file"]["url"]
    headers = {"Accept": "application/json"}
    got = await client.get(url, headers=headers)
    assert got.headers["content-type"] == "application/a2a+json"
    refused = await client.get(url.partition("?")[0], headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"]["status"] == "PERMISSION_DENIED"


async def test_older_clients_get_their_form(
    agent: Agent, backends: Backends, client: httpx.AsyncClient
) -> None:
    """A client of 0.3 gets the large file as one with a URI, and the small one with its bytes."""
    task_id = await worked(agent, backends, emitting)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task_id}}
    task = (await client.post("/", json=call)).json()["result"]
    large, small = (each["parts"][0]["file"] for each in task["artifacts"][:2])
    assert (large["mimeType"], large["name"]) == ("image/png", "ä.png")
    assert (await client.get(large["uri"])).content == LARGE
    assert base64.b64decode(small["bytes"]) == SMALL


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_all_readings_agree(
    app: FastAPI, agent: Agent, binding: str, backends: Backends
) -> None:
    """GetTask, a list, a blocking send, streams from their beginning and later, and a replay."""
    bench = Bench(WorkerExecutor(Handling(emitting)), backends=backends, retry_base_s=0)
    working = asyncio.create_task(bench.work())
    sent = (await agent.send()).task
    await working
    got = (await agent.call("GetTask", {"id": sent["id"]})).task
    listed = await agent.call("ListTasks", {"includeArtifacts": True})
    first_event = {"Last-Event-ID": await _first_id(app, binding, sent["id"])}
    events = await all_events(
        app, binding, "SubscribeToTask", {"id": sent["id"]}, headers=first_event
    )
    streamed = {
        update["artifact"]["artifactId"]: update["artifact"]["parts"][0]
        for update in (payload(event).get("artifactUpdate") for event in events)
        if update
    }
    expected = without_query(parts_of(got))
    assert without_query(parts_of(sent)) == expected
    assert without_query(parts_of(listed.result["tasks"][0])) == expected
    assert without_query(streamed) == expected
    everything = json.dumps([sent, got, listed.result, [payload(event) for event in events]])
    assert "a2a-blob" not in everything


async def _first_id(app: FastAPI, binding: str, task_id: str) -> str:
    """The id of the first event of a task, as its version and incarnation have it."""
    events = await all_events(
        app, binding, "SubscribeToTask", {"id": task_id}, headers={"Last-Event-ID": "1.0.aaaaaa"}
    )
    _, _, tag = str(events[0].id).split(".")
    return f"1.0.{tag}"


async def test_a_link_ends(agent: Agent, backends: Backends, client: httpx.AsyncClient) -> None:
    """After its time, changed, or with another method it gives nothing."""
    task_id = await worked(agent, backends, emitting)
    url = parts_of((await agent.call("GetTask", {"id": task_id})).task)["large"]["url"]
    changed = [url.replace("signature=", f"signature={added}") for added in ("0", "%C3%A4")]
    for refused in (*changed, url.partition("?")[0]):
        assert (await client.get(refused)).status_code == 403
    assert (await client.post(url)).status_code == 405
    assert (await client.get("/.blobs/tasks")).status_code == 403
    blobs = backends.storage.table.blobs
    assert isinstance(blobs, MemoryBlobs)
    clock = ManualClock()
    clock.advance(backends.storage.clock.now_ms() / 1000 - clock.now_ms() / 1000 + 301)
    blobs._clock = clock
    assert (await client.get(url)).status_code == 403


@pytest.mark.parametrize(
    ("media_type", "filename"),
    [("image/日本", ""), ("text/plain\nx: y" + "x" * 20_000, "a\n" + "n" * 20_000 + ".png")],
)
async def test_what_no_header_can_have_is_served(
    agent: Agent, backends: Backends, client: httpx.AsyncClient, media_type: str, filename: str
) -> None:
    """A file whose type or name no header takes has a link of a usual length to its bytes."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_file(io.BytesIO(LARGE), media_type=media_type, filename=filename)
        await ctx.respond()

    task_id = await worked(agent, backends, handle)
    part = parts_of((await agent.call("GetTask", {"id": task_id})).task)["file"]
    assert part["mediaType"] == media_type
    assert len(part["url"]) < 1_000
    got = await client.get(part["url"])
    assert got.content == LARGE
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-disposition"].endswith("png") == bool(filename)


@pytest.mark.parametrize("way", ["get", "link"])
async def test_a_store_that_refuses_leaves_the_rest_readable(
    agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A sentence stands in the file's place for a client, and an agent's turn is not run on it."""

    async def handle(ctx: TaskContext) -> None:
        name = "lost.png"
        await ctx.emit_artifact("a", file_bytes=SMALL if way == "get" else LARGE, filename=name)
        await ctx.request_input("more?")

    task_id = await worked(agent, backends, handle)
    refusal = AsyncMock(side_effect=ConfigurationError("The bucket refuses."))
    monkeypatch.setattr(backends.storage.table.blobs, way, refusal)
    task = (await agent.call("GetTask", {"id": task_id})).task
    told = task["artifacts"][0]["parts"][0]["text"]
    assert told.startswith("[lost.png: ")
    assert told.endswith("bytes that cannot be read at the moment]")
    assert task["history"][-1]["parts"] == [{"text": "go"}]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    listed = await agent.call("ListTasks", {"includeArtifacts": True})
    assert listed.result["tasks"][0]["artifacts"][0]["parts"][0]["text"] == told
    seen: list[int] = []

    async def look(ctx: TaskContext) -> None:
        seen.extend([len(await ctx.read_file(each.files[0])) for each in ctx.previous_artifacts])
        await ctx.respond()

    await agent.send(configuration=NOW, taskId=task_id)
    bench = Bench(WorkerExecutor(Handling(look)), backends=backends, retry_base_s=0)
    assert await bench.work() is (way == "link")  # which no turn needs
    assert seen == ([] if way == "get" else [len(LARGE)])
    monkeypatch.undo()
    if way == "get":
        assert await bench.work()
        assert seen == [len(SMALL)]


async def test_a_store_that_takes_nothing_fails_what_needs_it(
    agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with a file is an error, and no task; a turn fails, and what it had is readable."""
    refusal = AsyncMock(side_effect=ConfigurationError("The bucket refuses."))
    monkeypatch.setattr(backends.storage.table.blobs, "put", refusal)
    refused = await agent.send(parts=[raw(SMALL)])
    assert refused.reason == "INTERNAL_ERROR" or refused.code == -32603
    assert re.match(r"The request failed. Correlation id: \w+", refused.message)
    assert (await agent.call("ListTasks", {})).result["tasks"] == []

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact("small", text="before")
        await emitting(ctx)

    sent = await agent.send(configuration=NOW)
    one = Bench(WorkerExecutor(Handling(handle)), backends=backends, max_attempts=1)
    assert await one.work()
    task = (await agent.call("GetTask", {"id": sent.task["id"]})).task
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "could not finish the task" in task["status"]["message"]["parts"][0]["text"]
    assert parts_of(task)["small"]["text"] == "before"


async def test_a_missing_object_is_told(
    agent: Agent, backends: Backends, client: httpx.AsyncClient
) -> None:
    """Its link gives a sentence, as does reading it in the next turn; all else is there."""
    said: list[str] = []

    async def ask(ctx: TaskContext) -> None:
        await ctx.emit_artifact("large", file_bytes=LARGE * 10, filename="lost.png")
        await ctx.emit_artifact("text", text="here")
        await ctx.request_input("more?")

    async def look(ctx: TaskContext) -> None:
        try:
            await ctx.read_file(ctx.previous_artifacts[0].files[0])
        except TypeError as error:
            said.append(str(error))
        await ctx.respond()

    task_id = await worked(agent, backends, ask)
    url = parts_of((await agent.call("GetTask", {"id": task_id})).task)["large"]["url"]
    blob, blobs = linked_blob(url), backends.storage.table.blobs
    assert blob is not None
    assert blobs is not None
    await blobs.delete(blob.owner)
    task = (await agent.call("GetTask", {"id": task_id})).task
    assert parts_of(task)["text"]["text"] == "here"
    gone = await client.get(parts_of(task)["large"]["url"])
    assert gone.status_code == 404
    assert "get the task again" in gone.json()["error"]["message"]
    await worked(agent, backends, look, taskId=task_id)
    assert said == [f"lost.png is not stored any more: 0 of {10 * len(LARGE)} bytes."]


@pytest.mark.parametrize(
    ("asked", "code", "first", "end"),
    [
        ("bytes=1-", 206, 1, 3 * len(LARGE)),
        ("bytes=5-9", 206, 5, 10),
        ("bytes=2000000-99000000", 206, 2_000_000, 3 * len(LARGE)),
        ("bytes=-7", 206, 3 * len(LARGE) - 7, 3 * len(LARGE)),
        ("bytes=7-5", 200, 0, 3 * len(LARGE)),
        ("bytes=0-1,5-6", 200, 0, 3 * len(LARGE)),
        ("bytes=99000000-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
    ],
)
async def test_a_link_gives_a_part(
    client: httpx.AsyncClient, backends: Backends, asked: str, code: int, first: int, end: int
) -> None:
    """A media player seeks in a file, as in one that a bucket serves."""
    blobs, content = backends.storage.table.blobs, LARGE * 3
    assert blobs is not None
    blob = Blob.of(content, BlobOwner("s" * 32, "t", "i" * 12))
    await blobs.put(blob, content, "")
    url = await blobs.link(blob, Link(media_type="video/mp4", filename="", seconds=60))
    got = await client.get(url, headers={"Range": asked})
    assert got.status_code == code
    assert got.content == content[first:end]
    told = got.headers.get("Content-Range")
    ranges = {200: None, 206: f"bytes {first}-{end - 1}/{len(content)}"}
    assert told == ranges.get(code, f"bytes */{len(content)}")


@pytest.mark.parametrize(
    ("url", "media_type", "content"),
    [
        ("data:image/png;base64,aGk-_w", "image/png", b"hi>\xff"),
        ("DATA:;base64,aGk%2B/w==", "text/plain", b"hi>\xff"),
        ("data:text/csv;charset=utf-8,a%2Cb%0A1,2", "text/csv;charset=utf-8", b"a,b\n1,2"),
        (f"data:;base64,{base64.b64encode(SMALL).decode()}", "text/plain", SMALL),
    ],
)
async def test_a_url_that_is_the_file(
    url: str, media_type: str, content: bytes, agent: Agent, backends: Backends
) -> None:
    """What comes as a `data:` URL is content for the agent, and the client's part stays a URL."""
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        (file,) = ctx.files
        seen.extend([file.media_type, await ctx.read_file(file), file.url])
        await ctx.respond()

    task_id = await worked(agent, backends, handle, parts=[{"url": url}])
    assert seen == [media_type, content, None]
    task = (await agent.call("GetTask", {"id": task_id})).task
    assert task["history"][0]["parts"] == [{"url": url}]


@pytest.mark.parametrize("url", ["data:a", "data:;base64,a*aa"])
async def test_a_data_url_that_is_none(url: str, agent: Agent, backends: Backends) -> None:
    """It stays a URL, and reading it says so."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(TypeError, match="data: URL cannot be decoded"):
            await ctx.read_file(ctx.files[0])
        await ctx.complete("read")

    task_id = await worked(agent, backends, handle, parts=[{"url": url}])
    assert (await agent.call("GetTask", {"id": task_id})).state == "COMPLETED"


async def test_an_answer_has_the_files_that_it_is_about(agent: Agent, backends: Backends) -> None:
    """In the turn of an answer the files of all messages are there, the newest first."""
    names: list[Any] = []

    async def ask(ctx: TaskContext) -> None:
        await ctx.request_input("Which page?")

    async def look(ctx: TaskContext) -> None:
        names.append([file.filename for file in ctx.files])
        names.append([[file.filename for file in message.files] for message in ctx.history])
        assert [await ctx.read_file(file) for file in ctx.files] == [b"x", b"1", LARGE]
        await ctx.respond("seen")

    first = [raw(b"1", filename="a.txt"), raw(LARGE, filename="b.pdf")]
    task_id = await worked(agent, backends, ask, parts=first)
    second = [{"text": "3"}, raw(b"x", filename="c.txt")]
    await worked(agent, backends, look, taskId=task_id, parts=second)
    assert names == [["c.txt", "a.txt", "b.pdf"], [["a.txt", "b.pdf"], []]]


async def test_a_later_turn_reads_what_is_there(agent: Agent, backends: Backends) -> None:
    """Files of earlier turns are in the agent's task, and are loaded again at any time."""

    async def ask(ctx: TaskContext) -> None:
        await ctx.emit_file(io.BytesIO(LARGE * 10), "big", media_type="image/png")
        await ctx.emit_artifact("small", file_bytes=SMALL)
        await ctx.request_input("more?")

    async def look(ctx: TaskContext) -> None:
        big, small = (artifact.files[0] for artifact in ctx.previous_artifacts)
        assert big.content is None
        assert await ctx.read_file(big) == LARGE * 10
        assert small.content == SMALL
        again = await ctx.link_to(big)
        assert linked_blob(again) == linked_blob(big.url or "")
        await ctx.respond("seen")

    task_id = await worked(agent, backends, ask)
    await worked(agent, backends, look, taskId=task_id)
    task = (await agent.call("GetTask", {"id": task_id})).task
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_file_of_any_kind_of_source(
    agent: Agent, backends: Backends, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A path, an open file and a stream become parts of one artifact, in their order."""
    path = tmp_path / "report.bin"
    path.write_bytes(LARGE)

    class Stream(io.RawIOBase):
        """A stream that can be read once, and not be sought."""

        def __init__(self) -> None:
            self._left = io.BytesIO(LARGE + b"3")

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._left.readinto(buffer)

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_file(path, media_type="application/pdf")
        with path.open("rb") as file:
            await ctx.emit_file(file, filename="two", append=True)
        await ctx.emit_file(Stream(), append=True)  # type: ignore[arg-type]
        await ctx.emit_file(io.BytesIO(b"tiny"), append=True, last_chunk=True)
        await ctx.respond()

    task_id = await worked(agent, backends, handle)
    task = (await agent.call("GetTask", {"id": task_id})).task
    first, second, third, tiny = task["artifacts"][0]["parts"]
    assert [first.get("filename"), second.get("filename")] == ["report.bin", "two"]
    contents = [(await client.get(part["url"])).content for part in (first, second, third)]
    assert contents == [LARGE, LARGE, LARGE + b"3"]
    assert base64.b64decode(tiny["raw"]) == b"tiny"


async def test_a_repeated_message_is_one_message(agent: Agent, backends: Backends) -> None:
    """With its large part, or with a link to it in its place, whatever the link's signature."""
    sent: dict[str, Any] = {"parts": [raw(LARGE[:300_000])], "contextId": "ctx"}
    headers = {"Idempotency-Key": "k"}
    first = await agent.send(configuration=NOW, headers=headers, **sent)
    (part,) = first.task["history"][0]["parts"]
    resigned = {**part, "url": part["url"].partition("?")[0] + "?signature=another"}
    for again in (raw(LARGE[:300_000]), part, resigned):
        sent["parts"] = [again]
        repeated = await agent.send(configuration=NOW, headers=headers, **sent)
        assert repeated.task["id"] == first.task["id"]
    task = await backends.storage.load_task(first.task["id"])
    assert task is not None
    assert [each.raw for message in task.history for each in message.parts] == [LARGE[:300_000]]
    other: dict[str, Any] = {"parts": [raw(LARGE[:300_001])], "contextId": "ctx"}
    refused = await agent.send(configuration=NOW, headers=headers, **other)
    assert "used before with a different message" in refused.message


async def test_a_link_to_what_the_task_does_not_have_is_refused(
    agent: Agent, backends: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    """Another digest, size or kind of content than its log names; what it names is taken."""

    async def asking(ctx: TaskContext) -> None:
        await ctx.emit_artifact("large", file_bytes=LARGE)
        await ctx.emit_artifact("text", text=TEXT, last_chunk=True)
        await ctx.request_input("Which file?")

    task_id = await worked(agent, backends, asking, parts=[raw(SMALL)])
    task = (await agent.call("GetTask", {"id": task_id})).task
    link = parts_of(task)["large"]["url"]
    large = linked_blob(link)
    assert large is not None
    for content in (SMALL + b"1", TEXT.encode()):
        other = Blob.of(content, large.owner)
        for blob in (other, replace(other, size=0), replace(large, size=10**15 - 1)):
            url = link.replace(large.key, blob.key)
            sent = await agent.send(parts=[{"url": url}], taskId=task_id, messageId="2")
            assert sent.reason == "INVALID_PARAMS"
            assert "names a file that the task does not have" in sent.message
    again = (await agent.call("GetTask", {"id": task_id})).task
    assert without_query(again) == without_query(task)
    own = [link, link.replace(large.key, Blob.of(SMALL, large.owner).key)]
    parts = [{"url": url} for url in own]
    read: list[bytes] = []

    async def reading(ctx: TaskContext) -> None:
        read.extend([await ctx.read_file(file) for file in ctx.files])
        await ctx.respond()

    await worked(agent, backends, reading, parts=parts, taskId=task_id, messageId="2")
    assert read[:2] == [LARGE, SMALL]  # then those of earlier messages
    assert "blob_missing" not in [getattr(one, "action", "") for one in caplog.records]


@pytest.mark.parametrize("kind", ["text", "raw+5"])
async def test_no_client_writes_a_reference(
    agent: Agent, backends: Backends, client: httpx.AsyncClient, kind: str
) -> None:
    """The service's own scheme is refused, also for a file of the caller: a text has no bound."""
    task_id = await worked(agent, backends, emitting)
    own = linked_blob(parts_of((await agent.call("GetTask", {"id": task_id})).task)["large"]["url"])
    assert own is not None
    for url in ("a2a-blob:raw:anything", f"a2a-blob:{kind}:{own.key}"):
        refused = await agent.send(parts=[{"text": "go"}, {"url": url}])
        assert refused.reason == "INVALID_PARAMS"
        assert "message.parts[1]" in str(refused.response.json())
        assert "only this service writes" in refused.message
    said = {"kind": "message", "messageId": "m", "role": "user"}
    sent = {**said, "parts": [{"kind": "file", "file": {"uri": f"a2a-blob:{kind}:{own.key}"}}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": sent}}
    answer = (await client.post("/", json=call)).json()
    assert "only this service writes" in answer["error"]["message"]


@pytest.mark.parametrize("source", [b"bytes", lambda: io.StringIO("text")])
async def test_what_is_no_file_is_refused(agent: Agent, backends: Backends, source: Any) -> None:
    """The sentence says what `emit_file` takes, and how bytes are emitted."""
    said: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.emit_file(source() if callable(source) else source)
        except TypeError as error:
            said.append(str(error))
        await ctx.respond()

    await worked(agent, backends, handle)
    assert re.search("takes a (path or an open binary file|file that is opened as binary)", said[0])


async def test_a_clients_own_url_is_not_fetched(agent: Agent, backends: Backends) -> None:
    """It goes to the agent as it is, and reading it says why the service does not."""
    said: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        (file,) = ctx.files
        assert file.url == "https://example.com/a.png"
        for call in (ctx.read_file, ctx.link_to):
            try:
                await call(file)
            except TypeError as error:
                said.append(str(error))
        await ctx.respond()

    await worked(agent, backends, handle, parts=[{"url": "https://example.com/a.png"}])
    assert len(said) == 2
    assert all("never fetches" in each for each in said)


async def test_long_chunks_are_one_text(agent: Agent, backends: Backends) -> None:
    """Text that is streamed in long and short chunks is one part once its artifact has ended."""
    chunks = [TEXT, "short", TEXT, TEXT, "end", "."]

    async def handle(ctx: TaskContext) -> None:
        for number, chunk in enumerate(chunks):
            await ctx.emit_text_artifact(chunk, "a", append=number > 0)
        await ctx.emit_text_artifact("x", "b")
        await ctx.emit_text_artifact(TEXT, "b", append=True)
        await ctx.respond()

    task_id = await worked(agent, backends, handle)
    task = (await agent.call("GetTask", {"id": task_id})).task
    texts = [[part["text"] for part in each["parts"]] for each in task["artifacts"]]
    assert texts == [["".join(chunks)], [f"x{TEXT}"]]
