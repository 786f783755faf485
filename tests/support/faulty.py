"""What AWS does to requests on a bad day, done to a boto3 client by botocore's event hooks.

DynamoDB Local never throttles, never conflicts, answers everything and has indexes without lag.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    return answer(body, status)


def answer(body: dict[str, Any], status: int = 200) -> AWSResponse:
    """An answer that no server has given."""
    response: Any = AWSResponse("http://faulty", status, HTTPHeaders(), None)
    response._content = json.dumps(body).encode()  # what was read off the wire
    made: AWSResponse = response
    return made


def apply_and_drop(request: Any) -> None:
    """Let the server carry the request out, and lose its answer."""
    _wire.send(request)
    raise ReadTimeoutError(endpoint_url=request.url)


def _lose(request: Any) -> None:
    raise ReadTimeoutError(endpoint_url=request.url)


def _apply_and_fail(request: Any) -> AWSResponse:
    _wire.send(request)
    return refuse("ServiceUnavailable", status=503)


def _throttle(request: Any) -> AWSResponse:
    is_sqs = "AmazonSQS" in str(request.headers["X-Amz-Target"])
    return refuse("RequestThrottled" if is_sqs else "ProvisionedThroughputExceededException")


def _conflict(request: Any) -> AWSResponse:
    """The first action of a transaction has met another transaction."""
    actions = len(json.loads(request.body).get("TransactItems", [1]))
    reasons = ["TransactionConflict", *["None"] * (actions - 1)]
    return refuse("TransactionCanceledException", reasons=reasons)


KINDS: Final[Mapping[str, Callable[[Any], AWSResponse | None]]] = {
    "answer lost": apply_and_drop,
    "request lost": _lose,
    "throttled": _throttle,
    "server error": lambda _: refuse("InternalServerError", status=500),
    "error, applied": _apply_and_fail,
    "conflict": _conflict,
}
"""What may become of a request."""


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

    def attach(self, client: Any, *operations: str) -> None:
        for operation in operations or ("TransactWriteItems",):
            client.meta.events.register(f"before-send.dynamodb.{operation}", self._before_send)

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            kind = self._random.choice(sorted(KINDS))
            self.met[kind] += 1
        return KINDS[kind](request)


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
