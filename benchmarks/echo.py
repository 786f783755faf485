"""Where the time of a blocking echo goes on the emulators: `python -m benchmarks.echo`.

`a2a-serverless api` and two workers on DynamoDB Local and fauxqs, each with a stopwatch on its
requests (`benchmarks.echo_probe`). Prints

- the requests of the echo that took the median time: which process sent them, when, and how long
  the emulator took;
- how many requests a task costs while many are sent at once, and which processes used the
  processor.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.processes import running
from benchmarks.stream import CARD, provision
from benchmarks.stream_clients import VERSION, message
from tests.support.emulators import dynamodb_local, fauxqs

AGENT = "benchmarks/echo_probe.py:agent"
WORKERS = 2
WARM_UP = 5
SENDERS = 20
MS = 1e6


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """A request to an emulator; times in nanoseconds of CLOCK_MONOTONIC."""

    sent_ns: int
    answered_ns: int
    process: str
    operation: str

    @classmethod
    def read(cls, line: str) -> Request:
        """Return the request that a line of the probe's log describes."""
        process, operation, sent, answered = line.split()
        return cls(int(sent), int(answered), process, operation)


def requests_of(log: Path) -> list[Request]:
    """Return all requests so far, in their order."""
    return sorted(Request.read(line) for line in log.read_text(encoding="utf-8").splitlines())


async def echo(http: httpx.AsyncClient, url: str) -> tuple[int, int]:
    """Send a message and wait for its end; return when it began and ended."""
    began = time.monotonic_ns()
    body = {"message": message("hello")}
    answer = await http.post(f"{url}/message:send", json=body, headers=VERSION)
    state = answer.json()["task"]["status"]["state"]
    assert state == "TASK_STATE_COMPLETED", answer.text
    return began, time.monotonic_ns()


async def echoes(url: str, count: int, senders: int) -> list[tuple[int, int]]:
    """Send `count` messages, `senders` at a time."""
    left = iter(range(count))
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:

        async def sender() -> list[tuple[int, int]]:
            return [await echo(http, url) for _ in left]

        done = await asyncio.gather(*(sender() for _ in range(senders)))
    return [span for spans in done for span in spans]


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report_one(times: Sequence[tuple[int, int]], requests: Sequence[Request]) -> None:
    """Print the median echo, request by request, without long polls that began before it."""
    lasted = sorted(times, key=lambda span: span[1] - span[0])
    began, ended = lasted[len(lasted) // 2]
    of_all = [(end - start) / MS for start, end in times]
    print(f"{len(times)} echoes, one at a time: p50 {statistics.median(of_all):.0f} ms.\n")
    print(f"{'process':<10}{'request':<26}{'sent at, ms':>12}{'took, ms':>10}")
    for request in requests:
        if began <= request.sent_ns < ended:
            at, took = request.sent_ns - began, request.answered_ns - request.sent_ns
            print(f"{request.process:<10}{request.operation:<26}{at / MS:>12.1f}{took / MS:>10.1f}")
    print(f"{'':<10}{'answered':<26}{(ended - began) / MS:>12.1f}\n")


def report_many(
    tasks: int, passed_s: float, used: Mapping[str, float], requests: Sequence[Request]
) -> None:
    """Print throughput, requests for a task, and the shares of the processor."""
    print(
        f"{tasks} tasks, {SENDERS} at a time, {WORKERS} workers: {tasks / passed_s:.0f} a second."
    )
    counts = Counter(request.operation for request in requests)
    each = ", ".join(f"{name} {count / tasks:.1f}" for name, count in counts.most_common())
    print(f"Requests for a task: {each}.")
    cores = passed_s * (os.cpu_count() or 1)
    shares = ", ".join(f"{name} {100 * seconds / cores:.0f} %" for name, seconds in used.items())
    busy = 100 * sum(used.values()) / cores
    print(f"Processor time, of {os.cpu_count()} cores: {shares}; in all {busy:.0f} %.")
    print(f"Load of the machine (1 min): {os.getloadavg()[0]:.1f}.")


def main() -> None:
    """Measure on emulators that are started for it, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--echoes", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--concurrency", default="10", help="turns at a time in each worker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        log = folder / "requests"
        dynamodb, sqs = stack.enter_context(dynamodb_local()), stack.enter_context(fauxqs())
        names = provision({**dynamodb.environment(), **sqs.environment()})
        probe = [sys.executable, "-m", "benchmarks.echo_probe", str(log)]
        api = [*probe, "api", "--card", str(CARD), "--port", "0"]
        served = stack.enter_context(running(api, r"A2A at (\S+),", folder, **names))
        worker = [*probe, "worker", "--agent", AGENT, "--concurrency", options.concurrency]
        workers = [
            stack.enter_context(running(worker, "(turns at a time)", folder, **names))
            for _ in range(WORKERS)
        ]
        asyncio.run(echoes(served.said, WARM_UP, 1))
        report_one(asyncio.run(echoes(served.said, options.echoes, 1)), requests_of(log))
        pids = {"DynamoDB Local": [dynamodb.pid], "fauxqs": [sqs.pid], "api": [served.process.pid]}
        pids["workers"] = [worker.process.pid for worker in workers]
        pids["client"] = [os.getpid()]
        before = {who: sum(map(processor_s, of_it)) for who, of_it in pids.items()}
        began_ns = time.monotonic_ns()
        asyncio.run(echoes(served.said, options.tasks, SENDERS))
        passed_s = (time.monotonic_ns() - began_ns) / 1e9
        used = {who: sum(map(processor_s, of_it)) - before[who] for who, of_it in pids.items()}
        sent = [request for request in requests_of(log) if request.sent_ns >= began_ns]
        report_many(options.tasks, passed_s, used, sent)


if __name__ == "__main__":
    main()
