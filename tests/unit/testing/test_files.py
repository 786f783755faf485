"""The testing kit's files: by content, and at URLs that any client can fetch."""

from __future__ import annotations

import httpx

from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless_tools.testing import FakeFiles, file_part
from a2a_serverless_tools.testing.fixtures import MakeBench


class Summary(Worker):
    """Fetches the files of a message and gives their sizes, and the last one's text, back."""

    async def handle(self, ctx: TaskContext) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            for file in ctx.files:
                content = file.content
                if file.url is not None:
                    answer = await http.get(file.url)
                    if answer.status_code != httpx.codes.OK:
                        await ctx.fail(f"{file.filename}: HTTP {answer.status_code}")
                        return
                    content = answer.content
                kind = file.media_type
                await ctx.emit_artifact(file.filename, file_bytes=content or b"", media_type=kind)
        await ctx.respond()


def test_an_agent_fetches_and_returns_files(agent_bench: MakeBench, fake_files: FakeFiles) -> None:
    """Content and URL reach the agent; the artifact's files are there to be compared."""
    said = [file_part("a.json", b"{}"), fake_files.add("b ü.txt", "text", "text/plain")]
    run = agent_bench(Summary).send(said)
    assert run.state == "completed", run
    (first,), (second,) = run.artifacts["a.json"].files, run.artifacts["b ü.txt"].files
    assert (first.content, first.media_type) == (b"{}", "application/json")
    assert (second.content, second.media_type) == (b"text", "text/plain")
    assert fake_files.requests == ["b ü.txt"]


def test_a_file_may_be_missing_or_down(agent_bench: MakeBench, fake_files: FakeFiles) -> None:
    """Each file has the status that the test wants."""
    for status in (404, 503):
        run = agent_bench(Summary).send(fake_files.add("a.txt", status=status))
        assert (run.state, run.text) == ("failed", f"a.txt: HTTP {status}")


def test_the_server_answers_like_one(fake_files: FakeFiles) -> None:
    """HEAD has the headers alone; a file that was not added is not there; a type is guessed."""
    fake_files.add("image.png", b"\x89PNG")
    head = httpx.head(fake_files.url("image.png"), trust_env=False, timeout=60)
    assert (head.headers["content-type"], head.headers["content-length"]) == ("image/png", "4")
    assert httpx.get(fake_files.url("other"), trust_env=False, timeout=60).status_code == 404
    assert fake_files.requests == ["image.png", "other"]
    assert file_part("unknown", b"").media_type == "application/octet-stream"
