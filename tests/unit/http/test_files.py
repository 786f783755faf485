"""Files of any size between clients and agents: what each side sends, gets and stores."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
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
from tests.support.a2a_calls import JSONRPC, LATER, REST, Agent, rpc
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.support.stream_calls import all_events, payload
from tests.support.workers import Bench

LARGE = bytes(range(256)) * 4_000
"""1 MB: more than an item or an answer can hold."""
SMALL = LARGE[:100_000]
TEXT = "ä long text. " * 10_000
BYTES = "application/octet-stream"

Handle = Callable[[TaskContext], Awaitable[None]]


class Stream(io.BytesIO):
    """A stream that can be read once."""

    def seekable(self) -> bool:
        return False


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


Run = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def run(agent: Agent, backends: Backends) -> Run:
    """Sends a message, lets a worker run its turn, and returns the task."""
    return partial(worked, agent, backends)


async def worked(agent: Agent, backends: Backends, handle: Handle, **sent: Any) -> dict[str, Any]:
    """Send a message, and let a worker run its turn; return the task."""
    answer = await agent.send(configuration=LATER, **sent)
    assert not answer.reason, answer.message
    assert await bench_of(backends, handle).work()
    return (await agent.call("GetTask", {"id": answer.task["id"]})).task


def bench_of(backends: Backends, handle: Handle) -> Bench:
    return Bench(WorkerExecutor(Handling(handle)), backends=backends, retry_base_s=0)


async def of_0_3(client: httpx.AsyncClient, method: str, params: dict[str, Any]) -> Any:
    return (await client.post("/", json=rpc(method, params))).json()


def parts_of(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["artifactId"]: each["parts"][0] for each in task.get("artifacts", ())}


def without_query(value: Any) -> Any:
    """A JSON value whose links have lost their signatures."""
    return json.loads(re.sub(r'(/\.blobs/[^?"]+)\?[^"]*', r"\1", json.dumps(value)))


def raw(content: bytes, **fields: Any) -> dict[str, Any]:
    return {"raw": base64.b64encode(content).decode(), **fields}


async def test_a_large_file_is_a_link(run: Run, client: httpx.AsyncClient) -> None:
    """In 1.0 and 0.3: the small file and the text are in the answer, the link gives the large."""
    task = await run(emitting)
    parts = parts_of(task)
    assert base64.b64decode(parts["small"]["raw"]) == SMALL
    assert parts["text"]["text"] == TEXT
    large = parts["large"]
    assert (large["mediaType"], large["filename"]) == ("image/png", "ä.png")
    assert large["url"].startswith("http://test/")
    got = await client.get(large["url"])
    assert (got.content, got.headers["content-type"]) == (LARGE, "image/png")
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4.png"
    assert got.headers["content-length"] == str(len(LARGE))
    older = (await of_0_3(client, "tasks/get", {"id": task["id"]}))["result"]
    large, small = (each["parts"][0]["file"] for each in older["artifacts"][:2])
    assert (large["mimeType"], large["name"]) == ("image/png", "ä.png")
    assert (await client.get(large["uri"])).content == LARGE
    assert base64.b64decode(small["bytes"]) == SMALL


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_readings_agree(app: FastAPI, agent: Agent, binding: str, backends: Backends) -> None:
    """GetTask, a list, a blocking send, streams from their beginning and later, and a replay."""
    working = asyncio.create_task(bench_of(backends, emitting).work())
    sent = (await agent.send()).task
    await working
    got = (await agent.call("GetTask", {"id": sent["id"]})).task
    listed = await agent.call("ListTasks", {"includeArtifacts": True})
    follow = partial(all_events, app, binding, "SubscribeToTask", {"id": sent["id"]})
    _, _, tag = str((await follow({"Last-Event-ID": "1.0.aaaaaa"}))[0].id).split(".")
    payloads = [payload(event) for event in await follow({"Last-Event-ID": f"1.0.{tag}"})]
    updates = [told["artifactUpdate"]["artifact"] for told in payloads if "artifactUpdate" in told]
    streamed = {update["artifactId"]: update["parts"][0] for update in updates}
    expected = without_query(parts_of(got))
    assert without_query(parts_of(sent)) == expected
    assert without_query(parts_of(listed.result["tasks"][0])) == expected
    assert without_query(streamed) == expected
    assert "a2a-blob" not in json.dumps([sent, got, listed.result, payloads])


async def test_a_link_ends(run: Run, backends: Backends, client: httpx.AsyncClient) -> None:
    """After its time, changed, or with another method it gives nothing."""
    url = parts_of(await run(emitting))["large"]["url"]
    changed = [url.replace("signature=", f"signature={added}") for added in ("0", "%C3%A4")]
    for refused in (*changed, url.partition("?")[0], "/.blobs/tasks"):
        assert (await client.get(refused)).status_code == 403
    assert (await client.post(url)).status_code == 405
    blobs = backends.storage.table.blobs
    assert isinstance(blobs, MemoryBlobs)
    blobs._clock = ManualClock(backends.storage.clock.now_ms() + 301_000)
    assert (await client.get(url)).status_code == 403


@pytest.mark.parametrize(
    ("media_type", "filename", "served"),
    [
        ("application/a2a+json", "", "application/a2a+json"),
        ("image/日本", "", BYTES),
        ("text/plain\nx: y" + "x" * 20_000, "a\n" + "n" * 20_000 + ".png", BYTES),
    ],
)
async def test_what_is_served(
    run: Run, client: httpx.AsyncClient, media_type: str, filename: str, served: str
) -> None:
    """A file keeps its type if a header takes it; links are short, and refused in JSON."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_file(io.BytesIO(LARGE), media_type=media_type, filename=filename)
        await ctx.respond()

    part = parts_of(await run(handle))["file"]
    assert part["mediaType"] == media_type
    assert len(part["url"]) < 1_000
    accepted = {"Accept": "application/json"}
    got = await client.get(part["url"], headers=accepted)
    assert (got.content, got.headers["content-type"]) == (LARGE, served)
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-disposition"].endswith("png") == bool(filename)
    refused = await client.get(part["url"].partition("?")[0], headers=accepted)
    assert (refused.status_code, refused.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("way", ["get", "link"])
async def test_a_store_that_refuses_leaves_the_rest_readable(
    run: Run, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A sentence stands in the file's place for a client, and an agent's turn is not run on it."""

    async def handle(ctx: TaskContext) -> None:
        name = "lost.png"
        await ctx.emit_artifact("a", file_bytes=SMALL if way == "get" else LARGE, filename=name)
        await ctx.request_input("more?")

    task_id = (await run(handle))["id"]
    refusal = AsyncMock(side_effect=ConfigurationError("The bucket refuses."))
    monkeypatch.setattr(backends.storage.table.blobs, way, refusal)
    task = (await agent.call("GetTask", {"id": task_id})).task
    told = parts_of(task)["a"]["text"]
    assert told.startswith("[lost.png: ")
    assert told.endswith("bytes that cannot be read at the moment]")
    assert task["history"][-1]["parts"] == [{"text": "go"}]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    listed = await agent.call("ListTasks", {"includeArtifacts": True})
    assert parts_of(listed.result["tasks"][0])["a"]["text"] == told
    seen: list[int] = []

    async def look(ctx: TaskContext) -> None:
        seen.extend([len(await ctx.read_file(each.files[0])) for each in ctx.previous_artifacts])
        await ctx.respond()

    await agent.send(configuration=LATER, taskId=task_id)
    bench = bench_of(backends, look)
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

    sent = await agent.send(configuration=LATER)
    one = Bench(WorkerExecutor(Handling(handle)), backends=backends, max_attempts=1)
    assert await one.work()
    task = (await agent.call("GetTask", {"id": sent.task["id"]})).task
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "could not finish the task" in task["status"]["message"]["parts"][0]["text"]
    assert parts_of(task)["small"]["text"] == "before"


async def test_a_missing_object_is_told(
    run: Run, agent: Agent, backends: Backends, client: httpx.AsyncClient
) -> None:
    """Its link gives a sentence, as does reading it in the next turn; all else is there."""
    said: list[str] = []

    async def ask(ctx: TaskContext) -> None:
        await ctx.emit_artifact("large", file_bytes=LARGE * 10, filename="lost.png")
        await ctx.emit_artifact("text", text="here")
        await ctx.request_input("more?")

    async def look(ctx: TaskContext) -> None:
        with pytest.raises(TypeError) as error:
            await ctx.read_file(ctx.previous_artifacts[0].files[0])
        said.append(str(error.value))
        await ctx.respond()

    task = await run(ask)
    blob = present(linked_blob(parts_of(task)["large"]["url"]))
    await present(backends.storage.table.blobs).delete(blob.owner)
    parts = parts_of((await agent.call("GetTask", {"id": task["id"]})).task)
    assert parts["text"]["text"] == "here"
    gone = await client.get(parts["large"]["url"])
    assert gone.status_code == 404
    assert "get the task again" in gone.json()["error"]["message"]
    await run(look, taskId=task["id"])
    assert said == [f"lost.png is not stored any more: 0 of {10 * len(LARGE)} bytes."]


async def test_a_link_gives_a_part(client: httpx.AsyncClient, backends: Backends) -> None:
    """A media player seeks in a file of several pieces, as in one that a bucket serves."""
    blobs, content, size = present(backends.storage.table.blobs), LARGE * 9, 9 * len(LARGE)
    blob = Blob.of(content, BlobOwner("s" * 32, "t", "i" * 12))
    await blobs.put(blob, content, "")
    url = await blobs.link(blob, Link(media_type="video/mp4", filename="", seconds=60))
    for asked, code, first, end in (
        ("1-", 206, 1, size),
        ("5-9", 206, 5, 10),
        ("2000000-99000000", 206, 2_000_000, size),
        ("-7", 206, size - 7, size),
        ("7-5", 200, 0, size),
        ("0-1,5-6", 200, 0, size),
        ("99000000-", 416, 0, 0),
        ("-0", 416, 0, 0),
    ):
        got = await client.get(url, headers={"Range": f"bytes={asked}"})
        assert (got.status_code, got.content) == (code, content[first:end])
        ranges = {200: None, 206: f"bytes {first}-{end - 1}/{size}", 416: f"bytes */{size}"}
        assert got.headers.get("Content-Range") == ranges[code]


@pytest.mark.parametrize(
    ("url", "media_type", "content"),
    [
        ("data:image/png;base64,aGk-_w", "image/png", b"hi>\xff"),
        ("DATA:;base64,aGk%2B/w==", "text/plain", b"hi>\xff"),
        ("data:text/csv;charset=utf-8,a%2Cb%0A1,2", "text/csv;charset=utf-8", b"a,b\n1,2"),
        (f"data:;base64,{base64.b64encode(SMALL).decode()}", "text/plain", SMALL),
        ("data:a", "", "data: URL cannot be decoded"),
        ("data:;base64,a*aa", "", "data: URL cannot be decoded"),
        ("https://example.com/a.png", "", "never fetches"),
    ],
)
async def test_a_url_that_is_the_file(run: Run, url: str, media_type: str, content: Any) -> None:
    """A `data:` URL is a file to its agent, a URL to its client; reading any other says why not."""

    async def handle(ctx: TaskContext) -> None:
        (file,) = ctx.files
        if isinstance(content, bytes):
            read = file.media_type, await ctx.read_file(file), file.url
            assert read == (media_type, content, None)
        else:
            assert file.url == url
            calls = (ctx.read_file, *([] if "data:" in url else [ctx.link_to]))
            for call in calls:
                with pytest.raises(TypeError, match=content):
                    await call(file)
        await ctx.complete("read")

    task = await run(handle, parts=[{"url": url}])
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["history"][0]["parts"] == [{"url": url}]


async def test_a_later_turn_reads_what_is_there(run: Run) -> None:
    """Earlier turns' files are there, and load at any time; an answer has all, the newest first."""

    async def ask(ctx: TaskContext) -> None:
        await ctx.emit_file(io.BytesIO(LARGE * 10), "big", media_type="image/png")
        await ctx.emit_artifact("small", file_bytes=SMALL)
        await ctx.request_input("Which page?")

    async def look(ctx: TaskContext) -> None:
        assert [file.filename for file in ctx.files] == ["c.txt", "a.txt", "b.pdf"]
        names = [[file.filename for file in message.files] for message in ctx.history]
        assert names == [["a.txt", "b.pdf"], []]
        assert [await ctx.read_file(file) for file in ctx.files] == [b"x", b"1", LARGE]
        big, small = (artifact.files[0] for artifact in ctx.previous_artifacts)
        assert (big.content, small.content) == (None, SMALL)
        assert await ctx.read_file(big) == LARGE * 10
        assert linked_blob(await ctx.link_to(big)) == linked_blob(big.url or "")
        await ctx.respond("seen")

    first = [raw(b"1", filename="a.txt"), raw(LARGE, filename="b.pdf")]
    task_id = (await run(ask, parts=first))["id"]
    answer = [{"text": "3"}, raw(b"x", filename="c.txt")]
    task = await run(look, taskId=task_id, parts=answer)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_file_of_any_source(run: Run, client: httpx.AsyncClient, tmp_path: Path) -> None:
    """A path, an open file and a stream become parts of one artifact, in their order."""
    path = tmp_path / "report.bin"
    path.write_bytes(LARGE)

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_file(path, media_type="application/pdf")
        with path.open("rb") as file:
            await ctx.emit_file(file, filename="two", append=True)
        await ctx.emit_file(Stream(LARGE + b"3"), append=True)
        await ctx.emit_file(io.BytesIO(b"tiny"), append=True, last_chunk=True)
        await ctx.respond()

    first, second, third, tiny = (await run(handle))["artifacts"][0]["parts"]
    assert [first.get("filename"), second.get("filename")] == ["report.bin", "two"]
    contents = [(await client.get(part["url"])).content for part in (first, second, third)]
    assert contents == [LARGE, LARGE, LARGE + b"3"]
    assert base64.b64decode(tiny["raw"]) == b"tiny"


async def test_a_repeated_message_is_one_message(agent: Agent, backends: Backends) -> None:
    """With its large part, or with a link to it in its place, whatever the link's signature."""
    key: dict[str, Any] = {"headers": {"Idempotency-Key": "k"}, "contextId": "ctx"}
    own = LARGE[:300_000]
    first = await agent.send(configuration=LATER, parts=[raw(own)], **key)
    (part,) = first.task["history"][0]["parts"]
    resigned = {**part, "url": part["url"].partition("?")[0] + "?signature=another"}
    for again in (raw(own), part, resigned):
        repeated = await agent.send(configuration=LATER, parts=[again], **key)
        assert repeated.task["id"] == first.task["id"]
    task = present(await backends.storage.load_task(first.task["id"]))
    assert [each.raw for message in task.history for each in message.parts] == [own]
    refused = await agent.send(configuration=LATER, parts=[raw(own + b"x")], **key)
    assert "used before with a different message" in refused.message


async def test_a_link_to_what_the_task_does_not_have_is_refused(
    run: Run, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Another digest, size or kind of content than its log names; what it names is taken."""

    async def asking(ctx: TaskContext) -> None:
        await ctx.emit_artifact("large", file_bytes=LARGE)
        await ctx.emit_artifact("text", text=TEXT, last_chunk=True)
        await ctx.request_input("Which file?")

    task = await run(asking, parts=[raw(SMALL)])
    task_id, link = task["id"], parts_of(task)["large"]["url"]
    large = present(linked_blob(link))
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

    await run(reading, parts=parts, taskId=task_id, messageId="2")
    assert read[:2] == [LARGE, SMALL]  # then those of earlier messages
    assert "blob_missing" not in [getattr(one, "action", "") for one in caplog.records]


@pytest.mark.parametrize("kind", ["text", "raw+5"])
async def test_own_references(run: Run, agent: Agent, client: httpx.AsyncClient, kind: str) -> None:
    """The service's own scheme is refused, also for a file of the caller: a text has no bound."""
    own = present(linked_blob(parts_of(await run(emitting))["large"]["url"]))
    for url in ("a2a-blob:raw:anything", f"a2a-blob:{kind}:{own.key}"):
        refused = await agent.send(parts=[{"text": "go"}, {"url": url}])
        assert refused.reason == "INVALID_PARAMS"
        assert "message.parts[1]" in str(refused.response.json())
        assert "only this service writes" in refused.message
    parts = [{"kind": "file", "file": {"uri": f"a2a-blob:{kind}:{own.key}"}}]
    said = {"kind": "message", "messageId": "m", "role": "user", "parts": parts}
    answer = await of_0_3(client, "message/send", {"message": said})
    assert "only this service writes" in answer["error"]["message"]


@pytest.mark.parametrize("source", [b"bytes", lambda: io.StringIO("text")])
async def test_what_is_no_file_is_refused(run: Run, source: Any) -> None:
    """The sentence says what `emit_file` takes, and how bytes are emitted."""
    takes = "takes a (path or an open binary file|file that is opened as binary)"

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(TypeError, match=takes):
            await ctx.emit_file(source() if callable(source) else source)
        await ctx.complete("refused")

    assert (await run(handle))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_long_chunks_are_one_text(run: Run) -> None:
    """Text that is streamed in long and short chunks is one part once its artifact has ended."""
    chunks = [TEXT, "short", TEXT, TEXT, "end", "."]

    async def handle(ctx: TaskContext) -> None:
        for number, chunk in enumerate(chunks):
            await ctx.emit_text_artifact(chunk, "a", append=number > 0)
        await ctx.emit_text_artifact("x", "b")
        await ctx.emit_text_artifact(TEXT, "b", append=True)
        await ctx.respond()

    task = await run(handle)
    texts = [[part["text"] for part in each["parts"]] for each in task["artifacts"]]
    assert texts == [["".join(chunks)], [f"x{TEXT}"]]
