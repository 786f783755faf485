"""AWS on a bad day, for whole processes: faults on every request of every client that one makes.

    FAULTS_AWS=7:0.2                  seed and rate: a fifth of the requests meets a fault
    FAULTS_AWS_MET=/path/of/a/folder  of records: for each process a file, a line for each fault
    FAULTS_AWS_BUDGET_S=0             how long the runtime sends one request again, beside boto3's
                                      two repetitions, so that "no answer" comes out of it as well

DynamoDB and SQS are met alike, reads and writes, receives, deletes and visibilities.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from botocore.awsrequest import AWSResponse

from a2a_serverless import aws
from tests.faults.ledger import lines_of
from tests.support.faulty import KINDS, answer

DAY: Final = "FAULTS_AWS"
MET: Final = "FAULTS_AWS_MET"
BUDGET_S: Final = "FAULTS_AWS_BUDGET_S"

EVERYWHERE: Final = ("answer lost", "throttled", "request lost", "server error", "error, applied")
TRANSACTIONS: Final = ("conflict", *EVERYWHERE)
BATCHES: Final = ("unprocessed", *EVERYWHERE)


@dataclass(frozen=True, kw_only=True)
class Met:
    """One request that met a fault: of `api-0`, `dynamodb.GetItem`, `throttled`."""

    process: str
    operation: str
    fault: str

    @property
    def kind(self) -> str:
        return self.process.partition("-")[0]


class BadDay:
    """Faults from a seed on the requests of a process's clients.

    The first request of each operation meets one, and each later one with probability `rate`. The
    kinds take turns, and the operations begin with different ones: so each kind is met by a
    process that makes few requests.
    """

    def __init__(self, process: str, seed: str, rate: float, record: Path) -> None:
        self._process = process
        self._rate = rate
        self._record = record
        self._random = random.Random(f"{process} {seed}")  # noqa: S311 - a seeded schedule
        self._turns: Counter[str] = Counter()
        self._lock = threading.Lock()

    def before_send(self, request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        if not self._record.exists():
            return None
        fault = self._choose(event_name.removeprefix("before-send."))
        return KINDS.get(fault, _leave_unprocessed)(request) if fault else None

    def _choose(self, operation: str) -> str | None:
        kinds = _kinds(operation)
        with self._lock:
            if operation not in self._turns:
                self._turns[operation] = 0 if kinds is TRANSACTIONS else len(self._turns)
            elif self._random.random() >= self._rate:
                return None
            fault = kinds[self._turns[operation] % len(kinds)]
            self._turns[operation] += 1
            met = Met(process=self._process, operation=operation, fault=fault)
            with self._record.open("a", encoding="utf-8") as record:
                record.write(f"{json.dumps(asdict(met))}\n")
        return fault


def arm(process: str, variables: Mapping[str, str]) -> None:
    """Make it the day that the variables ask for, if they do, for all clients of this process."""
    if wanted := variables.get(DAY, ""):
        seed, _, rate = wanted.partition(":")
        day = BadDay(process, seed, float(rate), _record(process, variables))
        make = aws.client

        def client(service: str, *, long_poll: bool = False) -> Any:
            made = make(service, long_poll=long_poll)
            made.meta.events.register("before-send", day.before_send, unique_id="bad-day")
            return made

        mock.patch.object(aws, "client", client).start()
    if budget_s := variables.get(BUDGET_S):
        mock.patch.object(aws, "BUDGET_S", float(budget_s)).start()


def begin(process: str, variables: Mapping[str, str]) -> None:
    """Let the faults of a process begin, where the variables ask for any: it has started."""
    if DAY in variables:
        record = _record(process, variables)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()


def met(folder: Path) -> list[Met]:
    return [Met(**json.loads(line)) for path in sorted(folder.iterdir()) for line in lines_of(path)]


def _record(process: str, variables: Mapping[str, str]) -> Path:
    return Path(variables[MET]) / process


def _kinds(operation: str) -> tuple[str, ...]:
    name = operation.rpartition(".")[2]
    if name == "TransactWriteItems":
        return TRANSACTIONS
    return BATCHES if name.startswith("Batch") else EVERYWHERE


def _leave_unprocessed(request: Any) -> AWSResponse:
    """A batch of which nothing was done: how DynamoDB throttles one."""
    wanted = json.loads(request.body)["RequestItems"]
    return answer({"Responses": {}, "UnprocessedKeys": wanted, "UnprocessedItems": wanted})
