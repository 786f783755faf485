"""What a slow webhook costs its task: `python -m benchmarks.push [--rounds 40] [--webhook 10]`.

`a2a-serverless api`, `worker` and `push` run on DynamoDB Local and fauxqs. Each round has a task
without a webhook, one whose webhook answers at once, and one whose webhook takes 10 s for each
answer, in changing order; the webhooks are notified of every status. A task's time runs from its
client's request to the time of its last status. The program prints the times of the three kinds,
and the differences within the rounds with their 95% intervals: what the slowness costs, and what a
webhook costs at all (one more item in the task's first transaction, and here a third process on the
same cores).

The exit status is 1 if a difference is beyond the target, if a slow webhook was not being called
while its task ran, or if it was not notified of its task's end. The figures mean little on a
machine that does other work, so its load is printed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import httpx

from benchmarks.processes import running
from benchmarks.stream import provision
from benchmarks.stream_clients import VERSION
from benchmarks.stream_figures import percentile
from tests.support.emulators import dynamodb_local, fauxqs

HERE = Path(__file__).parent
CARD = HERE / "stream_card.json"
AGENT = f"{HERE / 'stream_agent.py'}:agent"
WORK = {"chunks": 5, "gap_s": 0, "silence_s": 0.5}
"""The load of the agent: some commits, and time in which the webhook is called."""

WEBHOOKS = 200
"""The most webhooks called at the same time: more than ever wait."""
WARM_UP = 3
KINDS = ("without a webhook", "with one that answers at once", "with a slow one")
TARGET_MS = 25.0
"""The largest median difference between tasks with a slow webhook and with a quick one."""
EARLY_SHARE = 0.9
"""The least share of webhooks that must be called before their task has ended; with fewer, the
benchmark does not measure what it says."""
RESAMPLES = 2000


@dataclass
class Webhook:
    """A receiver that waits before each answer."""

    answers_after_s: float
    url: str = ""
    called_at: dict[str, float] = field(default_factory=dict)
    """The time of each task's first notification, in seconds since the epoch."""
    ended: set[str] = field(default_factory=set)
    """The tasks of whose end it was notified."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve on a free port for the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        update = json.loads(await reader.readexactly(length))["statusUpdate"]
        self.called_at.setdefault(update["taskId"], time.time())
        if update["status"]["state"] == "TASK_STATE_COMPLETED":
            self.ended.add(update["taskId"])
        await asyncio.sleep(self.answers_after_s)
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()


@dataclass(frozen=True)
class Ran:
    """One task, times in seconds since the epoch."""

    task_id: str
    sent_at: float
    ended_at: float

    @property
    def took_ms(self) -> float:
        return (self.ended_at - self.sent_at) * 1000


@contextmanager
def deployed(folder: Path) -> Iterator[str]:
    """Run api, worker and push for the block; yield the API's URL."""
    with ExitStack() as stack:
        dynamodb = stack.enter_context(dynamodb_local())
        sqs = stack.enter_context(fauxqs())
        names = provision({**dynamodb.environment(), **sqs.environment()})
        names |= {"A2A_PUSH_EVENTS": "statuses", "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
        serving = ("api", "--card", str(CARD), "--port", "0")
        parts = {
            "turns at a time": ("worker", "--agent", AGENT),
            "webhooks at a time": ("push", "--concurrency", str(WEBHOOKS)),
            r"A2A at (\S+),": serving,
        }
        url = ""
        for ready, arguments in parts.items():
            command = [sys.executable, "-m", "a2a_serverless_tools.cli", *arguments]
            pattern = ready if "(" in ready else f"({ready})"
            url = stack.enter_context(running(command, pattern, folder, **names)).said
        yield url


async def run_task(http: httpx.AsyncClient, webhook: str = "") -> Ran:
    """Send one message and wait for the task's end."""
    message = {
        "messageId": uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": json.dumps(WORK)}],
    }
    told = {"taskPushNotificationConfig": {"url": webhook}} if webhook else {}
    sent_at = time.time()
    answer = await http.post(
        "/message:send", json={"message": message, "configuration": told}, headers=VERSION
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    task = answer.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    ended_at = datetime.fromisoformat(task["status"]["timestamp"]).timestamp()
    return Ran(task["id"], sent_at, ended_at)


Round = tuple[Ran, Ran, Ran]
"""A task of each kind."""


async def measure(
    url: str, rounds: int, quick: Webhook, slow: Webhook
) -> tuple[list[Round], list[str]]:
    """Run the rounds; return them, and what is wrong with them."""
    seen: list[Round] = []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        for number in range(-WARM_UP, rounds):
            kinds = [("", 0), (quick.url, 1), (slow.url, 2)]
            order = kinds[number % 3 :] + kinds[: number % 3]
            ran = {place: await run_task(http, webhook) for webhook, place in order}
            if number >= 0:
                seen.append((ran[0], ran[1], ran[2]))
        tasks = [each[2] for each in seen]
        deadline = time.monotonic() + 10 * slow.answers_after_s + 30
        while missing := {task.task_id for task in tasks} - slow.ended:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
    early = [t for t in tasks if slow.called_at.get(t.task_id, t.ended_at) < t.ended_at]
    wrong = []
    if len(early) < EARLY_SHARE * rounds:
        wrong.append(f"only {len(early)} webhooks of {rounds} were called while their task ran")
    if missing:
        wrong.append(f"{len(missing)} webhooks were not told of their task's end")
    return seen, wrong


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the median of the differences."""
    order = random.Random(1)  # noqa: S311 - a seeded sample
    medians = [
        statistics.median(order.choices(differences, k=len(differences))) for _ in range(RESAMPLES)
    ]
    return percentile(medians, 3), percentile(medians, 97)


def report(seen: Sequence[Round], slow: Webhook) -> float:
    """Print the figures; return the median cost of the slowness in milliseconds."""
    print(f"\n{'milliseconds of a task':<34}{'p50':>8}{'p95':>8}{'worst':>8}")
    for place, name in enumerate(KINDS):
        times = [each[place].took_ms for each in seen]
        print(
            f"{name:<34}{percentile(times, 50):>8.0f}{percentile(times, 95):>8.0f}"
            f"{max(times):>8.0f}"
        )
    print(f"\nDifferences within {len(seen)} rounds, median and its 95% interval:")
    cost = 0.0
    for name, one, other in (("slow - quick", 2, 1), ("quick - none", 1, 0), ("slow - none", 2, 0)):
        differences = [each[one].took_ms - each[other].took_ms for each in seen]
        low, high = interval(differences)
        median = statistics.median(differences)
        cost = median if (one, other) == (2, 1) else cost
        print(f"{name:<34}{median:>+8.1f} ms ({low:+.1f} to {high:+.1f})")
    print(
        f"The slow webhook took {slow.answers_after_s * 1000:.0f} ms for each answer. Load of the "
        f"machine (1 min): {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    return cost


async def _main(url: str, rounds: int, slow: Webhook) -> list[str]:
    quick = Webhook(0)
    async with quick.listening(), slow.listening():
        seen, wrong = await measure(url, rounds, quick, slow)
    cost = report(seen, slow)
    if cost > TARGET_MS:
        wrong.append(f"the webhook's slowness costs its task {cost:.0f} ms")
    return wrong


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument(
        "--webhook", type=float, default=10, metavar="S", help="seconds for an answer"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as url:
        wrong = asyncio.run(_main(url, options.rounds, Webhook(options.webhook)))
    for sentence in wrong:
        print(f"MISSED: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
