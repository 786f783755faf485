"""How fast a commit reaches a client: `python -m benchmarks.stream [--streams 5 20]`.

`a2a-serverless api` and two workers on DynamoDB Local and fauxqs, and in the same run the same
agent (`benchmarks.stream_agent`) on the official SDK's own server, two replicas of it over SQLite.
Clients are plain HTTP. Prints for each number of streams at once

- milliseconds from the commit, when its call has returned in the worker, to the client's event;
- the same from the agent's `enqueue_event`, with the batching of commits in it (0.1 s);
- reads per stream-second, while chunks come and after 10 s of silence;
- how long a read takes from the process that serves the streams, beside the time of the same
  Query on DynamoDB Local when nobody else asks.

A missed target makes the exit status 1. It means little on a machine that does something else: the
load is printed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from a2a_serverless.local.emulators import Emulator, dynamodb_local, fauxqs
from a2a_serverless.storage.dynamodb_items import attribute, event_sort, task_partition

HERE = Path(__file__).parent
CARD = HERE / "stream_card.json"
STOCK_EXTRAS = ("sqlalchemy[asyncio]==2.0.58", "aiosqlite==0.22.1")
WORKERS = 2
START_S = 60.0
SETTLED_S = 10.0
"""After so much silence a stream counts as idle."""
QUERIES = 500

TARGET_STREAMS = 5
TARGET_P50_MS = 60.0
TARGET_P95_MS = 150.0
TARGET_IDLE_READS = 1.2

NS = 1_000_000_000
VERSION = {"A2A-Version": "1.0"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each stream's agent does."""

    chunks: int
    gap_s: float
    silence_s: float


@dataclass(frozen=True)
class Chunk:
    """One chunk at the client."""

    number: int
    enqueued_ns: int
    received_ns: int


@dataclass
class Stream:
    """What one client has seen."""

    task_id: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    ended_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What the servers have noted."""

    commits: Mapping[tuple[str, int], int]
    reads: Sequence[tuple[int, int]]

    @classmethod
    def load(cls, path: Path) -> Notes:
        """Read the log of the probes."""
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return cls(
            commits={(f[1], int(f[2])): int(f[3]) for f in lines if f[0] == "commit"},
            reads=[(int(f[1]), int(f[2])) for f in lines if f[0] == "read"],
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One line of the report; times in milliseconds."""

    name: str
    streams: int
    since_commit: Sequence[float]
    since_enqueue: Sequence[float]
    active_reads: float
    idle_reads: float | None
    read_times: Sequence[float]


Follow = Callable[[httpx.AsyncClient, str], Awaitable[Stream]]
"""Sends a message and follows its task to the end."""


# -- clients -----------------------------------------------------------------------------------


async def follow(http: httpx.AsyncClient, url: str, body: object) -> Stream:
    """Read an event stream to its end."""
    seen = Stream()
    async with http.stream("POST", url, json=body, headers=VERSION) as response:
        assert response.status_code == httpx.codes.OK, await response.aread()
        async for line in response.aiter_lines():
            received_ns = time.monotonic_ns()
            if not line.startswith("data:"):
                continue
            ((kind, event),) = json.loads(line.removeprefix("data:")).items()
            if kind == "task":
                seen.task_id = event["id"]
                for part in (p for a in event.get("artifacts", []) for p in a["parts"]):
                    # Older than the subscription: not an event, so not measured.
                    number, enqueued = part["text"].split()
                    seen.chunks.append(Chunk(int(number), int(enqueued), 0))
            elif kind == "artifactUpdate":
                number, enqueued = event["artifact"]["parts"][0]["text"].split()
                seen.chunks.append(Chunk(int(number), int(enqueued), received_ns))
            elif event["status"]["state"] == "TASK_STATE_COMPLETED":
                seen.ended_ns = received_ns
    return seen


def streaming(base: str) -> Follow:
    """A client that sends and streams in one request."""

    async def one(http: httpx.AsyncClient, text: str) -> Stream:
        return await follow(http, f"{base}/message:stream", {"message": message(text)})

    return one


def subscribing(sender: str, follower: str) -> Follow:
    """A client that sends to one replica and subscribes at another one."""

    async def one(http: httpx.AsyncClient, text: str) -> Stream:
        body = {"message": message(text), "configuration": {"returnImmediately": True}}
        sent = await http.post(f"{sender}/message:send", json=body, headers=VERSION)
        task_id = sent.json()["task"]["id"]
        return await follow(http, f"{follower}/tasks/{task_id}:subscribe", {"id": task_id})

    return one


def message(text: str) -> dict[str, object]:
    """A user's message."""
    return {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}


async def run_streams(client: Follow, streams: int, load: Load) -> list[Stream]:
    """All streams at once; checks that each got every chunk in order."""
    text = json.dumps({"chunks": load.chunks, "gap_s": load.gap_s, "silence_s": load.silence_s})
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as http:
        seen = await asyncio.gather(*(client(http, text) for _ in range(streams)))
    for stream in seen:
        assert [c.number for c in stream.chunks] == list(range(load.chunks)), stream
        assert stream.ended_ns, "the stream ended before the task"
    return seen


# -- figures -----------------------------------------------------------------------------------


def figures(name: str, seen: Sequence[Stream], notes: Notes, load: Load) -> Figures:
    """What the clients have seen, set against what the servers have noted."""
    events = [(s, c) for s in seen for c in s.chunks if c.received_ns]
    active = (
        max(s.chunks[0].enqueued_ns for s in seen),
        min(s.chunks[-1].enqueued_ns for s in seen),
    )
    last_ns = max(s.chunks[-1].enqueued_ns for s in seen)
    idle = (last_ns + int(SETTLED_S * NS), min(s.ended_ns for s in seen))
    during = [ns / 1e6 for at, ns in notes.reads if active[0] <= at < active[1]]
    has_silence = load.silence_s > SETTLED_S
    return Figures(
        name=name,
        streams=len(seen),
        since_commit=[
            (c.received_ns - notes.commits[s.task_id, c.number]) / 1e6 for s, c in events
        ],
        since_enqueue=[(c.received_ns - c.enqueued_ns) / 1e6 for _, c in events],
        active_reads=reads_a_stream_second(notes, active, len(seen)),
        idle_reads=reads_a_stream_second(notes, idle, len(seen)) if has_silence else None,
        read_times=during,
    )


def reads_a_stream_second(notes: Notes, window: tuple[int, int], streams: int) -> float:
    """Reads in a window of time, for each stream and second."""
    start, end = window
    assert end > start, "the streams did not overlap"
    reads = sum(start <= at < end for at, _ in notes.reads)
    return reads / streams / ((end - start) / NS)


def percentile(values: Sequence[float], share: int) -> float:
    """The value below which `share` percent lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def report(lines: Sequence[Figures], alone: Sequence[float]) -> None:
    """Print the table."""
    print(
        f"\n{'':<34}{'streams':>8}{'commit to client, ms':>23}{'enqueue to client, ms':>25}"
        f"{'reads/stream-s':>17}{'read, ms':>14}\n"
        f"{'':<34}{'':>8}{'p50':>9}{'p95':>7}{'p99':>7}{'p50':>11}{'p95':>7}{'p99':>7}"
        f"{'active':>10}{'idle':>7}{'p50':>8}{'p95':>6}"
    )
    for line in lines:
        commit = [percentile(line.since_commit, share) for share in (50, 95, 99)]
        enqueue = [percentile(line.since_enqueue, share) for share in (50, 95, 99)]
        has_reads = len(line.read_times) > 1
        read = [f"{percentile(line.read_times, s):.1f}" if has_reads else "-" for s in (50, 95)]
        idle = "-" if line.idle_reads is None else f"{line.idle_reads:.2f}"
        print(
            f"{line.name:<34}{line.streams:>8}{commit[0]:>9.0f}{commit[1]:>7.0f}{commit[2]:>7.0f}"
            f"{enqueue[0]:>11.0f}{enqueue[1]:>7.0f}{enqueue[2]:>7.0f}"
            f"{line.active_reads:>10.1f}{idle:>7}{read[0]:>8}{read[1]:>6}"
        )
    print(
        f"\nThe same Query on DynamoDB Local when nobody else asks: p50 {percentile(alone, 50):.1f}"
        f" ms, p95 {percentile(alone, 95):.1f} ms. Load of the machine (1 min): before"
        f" {LOAD_BEFORE:.1f}, now {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores."
    )


def missed(lines: Sequence[Figures]) -> list[str]:
    """The targets that were missed, a sentence each."""
    said = []
    for line in lines:
        if line.idle_reads is not None and line.idle_reads > TARGET_IDLE_READS:
            said.append(f"{line.streams} streams: {line.idle_reads:.2f} reads/s when idle")
        if line.streams == TARGET_STREAMS:
            p50, p95 = (percentile(line.since_commit, share) for share in (50, 95))
            if p50 > TARGET_P50_MS or p95 > TARGET_P95_MS:
                said.append(f"{line.streams} streams: p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    return said


LOAD_BEFORE = os.getloadavg()[0]


# -- servers -----------------------------------------------------------------------------------


@contextmanager
def running(
    command: Sequence[str], ready: str, folder: Path, **variables: str
) -> Iterator[str]:
    """A server for the block; gives the first group of `ready` in what it says."""
    said = folder / f"{uuid.uuid4().hex}.out"
    environment = {**os.environ, "A2A_AUTH": "none", "PYTHONPATH": str(HERE.parent), **variables}
    with said.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while (found := re.search(ready, said.read_text())) is None:
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def probed(log: Path, *arguments: str) -> list[str]:
    """The command line with a stopwatch."""
    return [sys.executable, "-m", "benchmarks.stream_probe", str(log), *arguments]


def measure_ours(folder: Path, counts: Sequence[int], load: Load) -> tuple[list[Figures], list[float]]:
    """`api` and workers on the emulators; and the emulator's own query time."""
    log = folder / "ours.log"
    agent = f"{HERE / 'stream_agent.py'}:agent"
    concurrency = str(-(-max(counts) // WORKERS))
    with ExitStack() as stack:
        dynamodb = stack.enter_context(dynamodb_local())
        sqs = stack.enter_context(fauxqs())
        names = provision({**dynamodb.environment(), **sqs.environment()})
        serving = probed(log, "api", "--card", str(CARD), "--port", "0")
        url = stack.enter_context(running(serving, r"A2A at (\S+),", folder, **names))
        working = probed(log, "worker", "--agent", agent, "--concurrency", concurrency)
        for _ in range(WORKERS):
            stack.enter_context(running(working, "(turns at a time)", folder, **names))
        client = streaming(url)
        warmed_up = asyncio.run(run_streams(client, TARGET_STREAMS, WARM_UP))
        alone = query_times(dynamodb, names["A2A_TABLE"], warmed_up[0].task_id)
        lines = []
        for count in counts:
            seen = asyncio.run(run_streams(client, count, load))
            lines.append(figures("a2a-serverless", seen, Notes.load(log), load))
    return lines, alone


def measure_stock(folder: Path, counts: Sequence[int], load: Load) -> list[Figures]:
    """The official SDK's server: the replica that runs the agent, and another one."""
    lines = []
    with ExitStack() as stack:
        urls = []
        logs = [folder / "stock-1.log", folder / "stock-2.log"]
        for log in logs:
            command = [*STOCK_COMMAND, str(log), str(folder / "stock.db")]
            urls.append(stack.enter_context(running(command, r"A2A at (\S+),", folder)))
        sides = {
            "stock SDK, same process": (streaming(urls[0]), logs[0]),
            "stock SDK, another replica": (subscribing(urls[0], urls[1]), logs[1]),
        }
        for name, (client, reader) in sides.items():
            asyncio.run(run_streams(client, TARGET_STREAMS, WARM_UP))
            for count in counts:
                seen = asyncio.run(run_streams(client, count, load))
                notes = Notes(
                    commits=Notes.load(logs[0]).commits, reads=Notes.load(reader).reads
                )
                lines.append(figures(name, seen, notes, load))
    return lines


WARM_UP = Load(chunks=20, gap_s=0.1, silence_s=0)
STOCK_COMMAND = (
    *(str(Path(sys.executable).parent / "uv"), "run", "--quiet", "--no-project"),
    *(word for extra in STOCK_EXTRAS for word in ("--with", extra)),
    *("python", "-m", "benchmarks.stream_stock"),
)


def provision(environment: Mapping[str, str]) -> dict[str, str]:
    """Create table and queues; all variables that lead to them."""
    made = subprocess.run(
        [sys.executable, "-m", "a2a_serverless.cli", "provision"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    names = dict(line.split("=", 1) for line in made.stdout.splitlines())
    return {**environment, **names}


def query_times(dynamodb: Emulator, table: str, task_id: str) -> list[float]:
    """Milliseconds of a tail's Query that finds nothing new, one after the other."""
    client = dynamodb.client()
    scan = client.scan(TableName=table, FilterExpression="SK = :head",
                       ExpressionAttributeValues={":head": {"S": "HEAD"}})
    head = next(item for item in scan["Items"] if item["PK"]["S"].endswith(f"#{task_id}"))
    _, scope, _ = head["PK"]["S"].split("#", 2)
    start = event_sort(head["incarnation"]["S"], int(head["version"]["N"]) + 1)
    times = []
    for _ in range(QUERIES):
        before = time.perf_counter()
        client.query(
            TableName=table,
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk AND SK BETWEEN :start AND :head",
            ExpressionAttributeValues={
                ":pk": attribute(task_partition(scope, task_id)),
                ":start": attribute(start),
                ":head": attribute("HEAD"),
            },
        )
        times.append((time.perf_counter() - before) * 1000)
    return times


def main() -> int:
    """Measure both sides and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[5, 20], metavar="N")
    parser.add_argument("--chunks", type=int, default=80, help="chunks of a stream")
    parser.add_argument("--gap", type=float, default=0.25, help="seconds between chunks, on average")
    parser.add_argument("--silence", type=float, default=25, help="seconds of silence after them")
    parser.add_argument("--no-stock", action="store_true", help="leave the official server out")
    options = parser.parse_args()
    load = Load(chunks=options.chunks, gap_s=options.gap, silence_s=options.silence)
    with tempfile.TemporaryDirectory() as folder:
        ours, alone = measure_ours(Path(folder), options.streams, load)
        stock = [] if options.no_stock else measure_stock(Path(folder), options.streams, load)
    report([*ours, *stock], alone)
    failures = missed(ours)
    for failure in failures:
        print(f"MISSED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
