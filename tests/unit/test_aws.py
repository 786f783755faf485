"""boto3 in threads, and what its errors mean."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from botocore import exceptions

from a2a_serverless import aws
from a2a_serverless.errors import ConditionFailedError, ConfigurationError, UnavailableError
from tests.support.clocks import ManualClock


def error(code: str, *, status: int = 400, reasons: Any = None) -> Any:
    """A exceptions.ClientError as botocore raises it."""
    response: Any = {
        "Error": {"Code": code, "Message": code},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    if reasons is not None:
        response["CancellationReasons"] = reasons
    return exceptions.ClientError(response, "Operation")


def cancelled(*codes: str) -> Any:
    """A transaction cancelled for these reasons, one an action."""
    return error("TransactionCanceledException", reasons=[{"Code": code} for code in codes])


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (error("ConditionalCheckFailedException"), "lost"),
        (cancelled("ConditionalCheckFailed", "None"), "lost"),
        (cancelled("None", "ConditionalCheckFailed"), "lost"),
        # The condition is final; the conflict of another action is not.
        (cancelled("TransactionConflict", "ConditionalCheckFailed"), "lost"),
        (cancelled("TransactionConflict", "None"), "repeat"),
        (cancelled("None", "ProvisionedThroughputExceeded"), "repeat"),
        (cancelled("ThrottlingError"), "repeat"),
        (cancelled("ValidationError", "None"), "fatal"),
        (cancelled("ItemCollectionSizeLimitExceeded"), "fatal"),
        (error("TransactionInProgressException"), "repeat"),
        (error("IdempotentParameterMismatchException"), "fatal"),
        (error("TransactionConflictException"), "repeat"),
        (error("ProvisionedThroughputExceededException"), "repeat"),
        (error("RequestLimitExceeded"), "repeat"),
        (error("Whatever", status=503), "repeat"),
        (error("AccessDeniedException"), "fatal"),
        (exceptions.ReadTimeoutError(endpoint_url="http://x"), "repeat"),
        (exceptions.ConnectTimeoutError(endpoint_url="http://x"), "repeat"),
        (exceptions.EndpointConnectionError(endpoint_url="http://x"), "repeat"),
        (exceptions.ParamValidationError(report="x"), "fatal"),
        (ValueError("x"), "fatal"),
    ],
)
def test_outcomes(raised: Exception, outcome: str) -> None:
    """Only a failed condition is a loss; what may pass is repeated; the rest is fatal."""
    assert aws.kind_of(raised) == outcome


async def test_a_call_does_not_hold_the_loop() -> None:
    """Calls run in threads, many at a time, and see the caller's context variables."""
    variable: ContextVar[str] = ContextVar("variable", default="")
    variable.set("seen")
    together = threading.Barrier(32, timeout=10)

    def method(**kwargs: Any) -> tuple[str, Any]:
        together.wait()
        return variable.get(), kwargs["value"]

    results = await asyncio.gather(*(aws.call(method, value=n) for n in range(32)))
    assert results == [("seen", n) for n in range(32)]


class Service:
    """A client of a service that answers when it is told to."""

    def __init__(self, name: str) -> None:
        self.meta = SimpleNamespace(service_model=SimpleNamespace(service_name=name))
        self.answers = threading.Event()

    def ask(self) -> str:
        assert self.answers.wait(30)
        return "answered"


async def test_a_silent_service_does_not_hold_up_another_one() -> None:
    """While each thread for DynamoDB waits for its answer, a delivery is extended at SQS."""
    silent, sqs = Service("silent"), Service("sqs")
    waiting = [asyncio.create_task(aws.call(silent.ask)) for _ in range(aws.THREADS + 1)]
    await asyncio.sleep(0)  # they ask before it does
    sqs.answers.set()
    try:
        assert await asyncio.wait_for(aws.call(sqs.ask), 20) == "answered"
        assert not any(call.done() for call in waiting)
    finally:
        silent.answers.set()
        assert await asyncio.gather(*waiting) == ["answered"] * len(waiting)


@pytest.mark.parametrize("boto_s", [0.04, 1.4], ids=["botocore 1.44", "botocore 1.43"])
async def test_repeat_is_as_patient_with_each_botocore(boto_s: float) -> None:
    """A fault of 15 s is waited out by equal requests, whether boto3's take 0.04 s or 1.4 s."""
    clock = ManualClock()
    began, sent = clock.monotonic(), list[Any]()

    def fails(**kwargs: Any) -> None:
        sent.append(kwargs)
        clock.advance(boto_s)
        raise error("InternalServerError", status=500)

    with pytest.raises(UnavailableError):
        await aws.repeat(fails, clock=clock, token="t")
    assert sent == [{"token": "t"}] * len(sent)
    longest_pause_s = 2
    assert aws.BUDGET_S <= clock.monotonic() - began <= aws.BUDGET_S + longest_pause_s + boto_s
    sent.clear()
    with pytest.raises(UnavailableError):  # a read that has a substitute is not repeated
        await aws.repeat(fails, clock=clock, budget_s=0)
    assert sent == [{}]


async def test_repeat_tells_a_loss() -> None:
    """A failed condition comes at once, with the items as they stood, by place."""
    item = {"PK": {"S": "x"}}
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": item}]
    single = error("ConditionalCheckFailedException")
    single.response["Item"] = item
    for raised, place in ((error("TransactionCanceledException", reasons=reasons), 1), (single, 0)):
        with pytest.raises(ConditionFailedError) as caught:
            await aws.repeat(Mock(side_effect=raised))
        assert caught.value.items == {place: item}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without AWS in it, and no client from before."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    aws.forget_clients()
    yield monkeypatch
    aws.forget_clients()


def test_one_client_a_process(environment: pytest.MonkeyPatch) -> None:
    """All threads get the same one of a service; without a region a sentence names its variable."""
    with pytest.raises(ConfigurationError, match="AWS_DEFAULT_REGION"):
        aws.client("dynamodb")
    environment.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    environment.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:1")
    with ThreadPoolExecutor(8) as threads:
        clients = set(threads.map(lambda _: aws.client("dynamodb"), range(16)))
    (client,) = clients
    assert client.meta.region_name == "eu-central-1"
    assert client.meta.endpoint_url == "http://127.0.0.1:1"
    assert client.meta.config.max_pool_connections >= 32
    assert aws.client("sqs") is not client


def test_the_first_client_looks_into_few_folders(environment: pytest.MonkeyPatch) -> None:
    """Those of other services stay closed, which take time at every start; so may a home be."""
    listdir, stat = Mock(side_effect=os.listdir), os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path) == "/closed/models":
            raise PermissionError(path)
        return stat(path, *arguments, **options)

    environment.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    environment.setenv("AWS_DATA_PATH", "/closed/models")
    environment.setattr(os, "stat", refuse)
    environment.setattr(os, "listdir", listdir)
    assert aws.client("sqs").meta.service_model.service_name == "sqs"
    assert 0 < listdir.call_count < 20
