"""How fast a commit reaches a client: `python -m benchmarks.stream [--streams 5 20]`.

`a2a-serverless api` and two workers run on DynamoDB Local and fauxqs, and in the same run the same
agent (`benchmarks.stream_agent`) on the official SDK's own server, two replicas of it over SQLite.
Clients are plain HTTP. Prints for each number of streams at once

- milliseconds from the commit, when its call has returned in the worker, to the client's event;
- the same from the agent's `enqueue_event`, including the wait for other entries of the commit;
- reads per stream-second, while chunks come and after 10 s of silence;
- how long a read takes from the process that serves the streams, beside the time of the same
  Query on DynamoDB Local without other requests.

The exit status is 1 if a target is missed. The figures mean little on a machine that does other
work, so its load is printed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.layout import event_sort, task_partition
from benchmarks.processes import running
from benchmarks.stream_clients import Load, run_streams, streaming, subscribing
from benchmarks.stream_figures import TARGET_STREAMS, Figures, Notes, figures, missed, report
from tests.support.emulators import Emulator, dynamodb_local, fauxqs

HERE = Path(__file__).parent
CARD = HERE / "stream_card.json"
STOCK_EXTRAS = ("sqlalchemy[asyncio]==2.0.58", "aiosqlite==0.22.1")
WORKERS = 2
QUERIES = 500


def probed(log: Path, *arguments: str) -> list[str]:
    """Return the command that runs the command line with a stopwatch."""
    return [sys.executable, "-m", "benchmarks.stream_probe", str(log), *arguments]


def measure_ours(
    folder: Path, counts: Sequence[int], load: Load
) -> tuple[list[Figures], list[float]]:
    """Measure `api` and workers on the emulators; return also the emulator's own query times."""
    log = folder / "ours.log"
    agent = f"{HERE / 'stream_agent.py'}:agent"
    concurrency = str(-(-max(counts) // WORKERS))
    with ExitStack() as stack:
        dynamodb = stack.enter_context(dynamodb_local())
        sqs = stack.enter_context(fauxqs())
        names = provision({**dynamodb.environment(), **sqs.environment()})
        serving = probed(log, "api", "--card", str(CARD), "--port", "0")
        url = stack.enter_context(running(serving, r"A2A at (\S+),", folder, **names)).said
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
    """Measure the official SDK's server: the replica that runs the agent, and another one."""
    lines = []
    with ExitStack() as stack:
        urls = []
        logs = [folder / "stock-1.log", folder / "stock-2.log"]
        for log in logs:
            command = [*STOCK_COMMAND, str(log), str(folder / "stock.db")]
            server = running(command, r"A2A at (\S+),", folder, VIRTUAL_ENV=sys.prefix)
            urls.append(stack.enter_context(server).said)
        sides = {
            "stock SDK, same process": (streaming(urls[0]), logs[0]),
            "stock SDK, another replica": (subscribing(urls[0], urls[1]), logs[1]),
        }
        for name, (client, reader) in sides.items():
            asyncio.run(run_streams(client, TARGET_STREAMS, WARM_UP))
            for count in counts:
                seen = asyncio.run(run_streams(client, count, load))
                notes = Notes(commits=Notes.load(logs[0]).commits, reads=Notes.load(reader).reads)
                lines.append(figures(name, seen, notes, load))
    return lines


WARM_UP = Load(chunks=20, gap_s=0.1, silence_s=0)
STOCK_COMMAND = (
    *(str(Path(sys.executable).parent / "uv"), "run", "--quiet", "--no-project"),
    *(word for extra in STOCK_EXTRAS for word in ("--with", extra)),
    *("python", "-m", "benchmarks.stream_stock"),
)


def provision(environment: Mapping[str, str]) -> dict[str, str]:
    """Create table and queues; return all variables that lead to them."""
    made = subprocess.run(
        [sys.executable, "-m", "a2a_serverless_tools.cli", "provision"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    names = dict(line.split("=", 1) for line in made.stdout.splitlines())
    return {**environment, **names}


def query_times(dynamodb: Emulator, table: str, task_id: str) -> list[float]:
    """Return the milliseconds of Queries of a tail that find nothing new, one after the other."""
    client = dynamodb.client()
    scan = client.scan(
        TableName=table,
        FilterExpression="SK = :head",
        ExpressionAttributeValues={":head": {"S": "HEAD"}},
    )
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
            ExpressionAttributeValues=typed(
                {":pk": task_partition(scope, task_id), ":start": start, ":head": "HEAD"}
            ),
        )
        times.append((time.perf_counter() - before) * 1000)
    return times


def main() -> int:
    """Measure both sides and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[5, 20], metavar="N")
    parser.add_argument("--chunks", type=int, default=80, help="chunks of a stream")
    parser.add_argument(
        "--gap", type=float, default=0.25, help="seconds between chunks, on average"
    )
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
