"""A file that no memory has to hold, through the processes of one machine."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from a2a.client import A2ACardResolver
from google.protobuf.json_format import MessageToDict

from a2a_serverless.client import upload
from a2a_serverless_tools.cloud.emulator import free_port
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.e2e.commands import Deployed, deployed, environment
from tests.support.a2a_calls import Caller, message
from tests.support.emulators import CREDENTIALS
from tests.support.simulation.simulated_aws import BUCKET, served_s3, simulated_aws

SIZE = 100_000_000
MOST_BYTES = 64 * 1024 * 1024
"""More than idle, that a process may have in memory meanwhile."""

AGENT = """
import hashlib
import tempfile

from a2a_serverless.worker import TaskContext, Worker


class Maker(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "take":
            await ctx.save_file(ctx.files[0], "taken")
            with open("taken", "rb") as file:
                await ctx.complete(hashlib.file_digest(file, "sha256").hexdigest())
            return
        if ctx.user_text == "make":
            with tempfile.TemporaryFile() as file:
                for number in range(100):
                    file.write(bytes([number]) * 1_000_000)
                file.seek(0)
                await ctx.emit_file(file, "made", media_type="image/png", filename="made.png")
            await ctx.request_input("again?")
            return
        (artifact,) = ctx.previous_artifacts
        await ctx.save_file(artifact.files[0], "read.png")
        with open("read.png", "rb") as file:
            await ctx.complete(hashlib.file_digest(file, "sha256").hexdigest())


agent = Maker()
"""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The variables of where files are: beside the tasks' file, or in a bucket of moto."""
    if request.param == "folder":
        yield {}
        return
    with simulated_aws(), HttpServer(served_s3, bind(0), lifespan=False) as s3:
        yield {"AWS_ENDPOINT_URL_S3": s3.url, "A2A_BLOBS": BUCKET, **CREDENTIALS}


@pytest.fixture
def machine(tmp_path: Path, store: dict[str, str]) -> Iterator[Deployed]:
    """An api and a worker on one file, idle."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    card = Path(__file__).with_name("probe_card.json").read_text(encoding="utf-8")
    (tmp_path / "agent_card.json").write_text(card, encoding="utf-8")
    port = str(free_port())
    env = environment(
        A2A_TABLE=f"file:{tmp_path}/tasks.db",
        A2A_AUTH="none",
        A2A_PUBLIC_URL=f"http://127.0.0.1:{port}",
        TMPDIR=str(tmp_path),
        **store,
    )
    commands = {
        "api": ("--card", "agent_card.json", "--port", port),
        "worker": ("--agent", "agent.py:agent"),
    }
    with deployed(env, tmp_path, commands, cwd=tmp_path) as started:
        yield started


@pytest.fixture
def caller(machine: Deployed) -> Iterator[Caller]:
    """A client that has had a first small task."""
    with Caller(machine.url) as made:
        made.send("warm up", waits=True)
        yield made


def peaks(machine: Deployed) -> list[int]:
    """The most memory that api and worker have had since their start."""
    found = []
    for command in machine.commands.values():
        status = Path(f"/proc/{command.process.pid}/status").read_text(encoding="utf-8")
        found += re.findall(r"VmHWM:\s+(\d+) kB", status)
    return [1024 * int(kilobytes) for kilobytes in found]


@pytest.mark.long
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_file_of_100_mb_passes_in_little_memory(machine: Deployed, caller: Caller) -> None:
    """An agent makes it, a client fetches it by its link, and the next turn reads it again."""
    idle = peaks(machine)
    task = caller.send("make")
    part = caller.until("INPUT_REQUIRED", task["id"])["artifacts"][0]["parts"][0]
    sha, size = hashlib.sha256(), 0
    with httpx.stream("GET", part["url"], timeout=60, trust_env=False) as got:
        assert got.headers["content-type"] == "image/png"
        for chunk in got.iter_bytes():
            sha.update(chunk)
            size += len(chunk)
    assert size == SIZE
    again = message("read", messageId="2", taskId=task["id"])
    caller.http.post("/message:send", json={"message": again})
    ended = caller.until("COMPLETED|FAILED", task["id"])
    assert ended["artifacts"][1]["parts"][0]["text"] == sha.hexdigest()
    assert_little_more(machine, idle)


def assert_little_more(machine: Deployed, idle: list[int]) -> None:
    more = [peak - before for peak, before in zip(peaks(machine), idle, strict=True)]
    assert max(more) < MOST_BYTES, more


class Pattern(io.RawIOBase):
    """A stream of `SIZE` bytes that can be read once, and is never whole in memory."""

    def __init__(self) -> None:
        self.left, self.sha = SIZE, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = bytes([self.left % 251]) * min(size, self.left)
        self.left -= len(chunk)
        self.sha.update(chunk)
        return chunk

    def seekable(self) -> bool:
        return False


@pytest.mark.long
@pytest.mark.parametrize("store", ["folder"], indirect=True)
async def test_an_upload_of_100_mb_takes_little_memory(machine: Deployed, caller: Caller) -> None:
    """A client uploads a stream, and the agent reads what it was, byte for byte."""
    idle = peaks(machine)
    source = Pattern()
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, str(caller.http.base_url)).get_agent_card()
        part = await upload(http, card, source, media_type="text/plain")  # type: ignore[arg-type]
    said = message(messageId="taken", parts=[{"text": "take"}, MessageToDict(part)])
    body = {"message": said, "configuration": {"returnImmediately": True}}
    sent = await asyncio.to_thread(caller.http.post, "/message:send", json=body)
    assert sent.is_success, sent.text
    ended = await asyncio.to_thread(caller.until, "COMPLETED|FAILED", sent.json()["task"]["id"])
    assert ended["artifacts"][0]["parts"][0]["text"] == source.sha.hexdigest()
    assert_little_more(machine, idle)
