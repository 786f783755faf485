"""What AWS does to requests on a bad day, done to a boto3 client by botocore's event hooks.

DynamoDB Local never throttles, never conflicts, answers everything and has indexes without lag.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session

_wire = URLLib3Session(max_pool_connections=64)


def refuse(code: str, *, status: int = 400, reasons: list[str] | None = None) -> AWSResponse:
    """An error answer of DynamoDB to a request that it never carried out."""
    body: dict[str, Any] = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": code}
    if reasons is not None:
        body["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    response: Any = AWSResponse("http://faulty", status, HTTPHeaders(), None)
    response._content = json.dumps(body).encode()  # what was read off the wire
    answer: AWSResponse = response
    return answer


def apply_and_drop(request: Any) -> None:
    """Let the server carry the request out, and lose its answer."""
    _wire.send(request)
    raise ReadTimeoutError(endpoint_url=request.url)


@dataclass
class Faults:
    """Faults at random, from a seed, on the writes of a client.

    Each request meets one with probability `rate`: an answer lost after the write was applied, a
    request lost before it, throttling, a server error before or after the write, a conflict.
    """

    seed: int
    rate: float = 0.3
    met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a seeded schedule
        self._lock = threading.Lock()
        self._kinds: dict[str, Callable[[Any], AWSResponse | None]] = {
            "answer lost": apply_and_drop,
            "request lost": _lose,
            "throttled": lambda _: refuse("ProvisionedThroughputExceededException"),
            "server error": lambda _: refuse("InternalServerError", status=500),
            "server error after": _apply_and_fail,
            "conflict": lambda request: refuse(
                "TransactionCanceledException", reasons=_conflict(request)
            ),
        }

    def attach(self, client: Any, *operations: str) -> None:
        """Hang the faults on a client's operations."""
        for operation in operations or ("TransactWriteItems",):
            client.meta.events.register(f"before-send.dynamodb.{operation}", self._before_send)

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            kind = self._random.choice(sorted(self._kinds))
            self.met[kind] += 1
        return self._kinds[kind](request)


def _lose(request: Any) -> None:
    raise ReadTimeoutError(endpoint_url=request.url)


def _apply_and_fail(request: Any) -> AWSResponse:
    _wire.send(request)
    return refuse("ServiceUnavailable", status=503)


def _conflict(request: Any) -> list[str]:
    """The reasons of a cancellation: the first action met another transaction."""
    actions = len(json.loads(request.body).get("TransactItems", [1]))
    return ["TransactionConflict", *["None"] * (actions - 1)]


class StaleIndex:
    """Makes a client's index queries answer as they did when the index was frozen."""

    def __init__(self, client: Any) -> None:
        self._answers: dict[str, Any] = {}
        self._asked: dict[int, str] = {}
        self._frozen = False
        client.meta.events.register("before-call.dynamodb.Query", self._before)
        client.meta.events.register("after-call.dynamodb.Query", self._after)

    def freeze(self) -> None:
        """From now on repeat the answers given so far."""
        self._frozen = True

    def thaw(self) -> None:
        """The index has caught up."""
        self._frozen = False

    def _before(self, params: dict[str, Any], **_: Any) -> Any:
        question = params["body"]
        question = question.decode() if isinstance(question, bytes) else question
        self._asked[threading.get_ident()] = question
        if self._frozen and question in self._answers:
            http = AWSResponse("http://stale", 200, HTTPHeaders(), None)
            return http, json.loads(json.dumps(self._answers[question]))
        return None

    def _after(self, parsed: dict[str, Any], **_: Any) -> None:
        question = self._asked[threading.get_ident()]
        if not self._frozen and "IndexName" in json.loads(question):
            self._answers[question] = parsed
