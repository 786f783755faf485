"""Calls to AWS: one boto3 client for each service, calls in threads, and the meaning of errors.

boto3 blocks, and its clients are safe under threads. So every call runs in a thread of a pool, and
the event loop goes on. `ErrorKind` says what an error means for the request.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gzip
import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeAlias

from botocore import exceptions as boto
from botocore.config import Config
from botocore.loaders import JSONFileLoader
from botocore.parsers import ResponseParserError
from botocore.session import Session

from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import ConditionFailedError, ConfigurationError, UnavailableError

THREADS: Final = 64
"""The most calls to one service at the same time."""

BUDGET_S: Final = 15.0
"""Seconds after which `repeat` does not send a request again."""

_SERVER_ERROR: Final = 500

_READ_TIMEOUT_S: Final = 5
_LONG_POLL_TIMEOUT_S: Final = 30
"""Longer than the longest poll of SQS, 20 s; other requests are answered in milliseconds."""

_LOST_CODES: Final = frozenset({"ConditionalCheckFailed", "ConditionalCheckFailedException"})
_REPEAT_CODES: Final = frozenset(
    {
        "InternalServerError",
        "OverLimit",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "ThrottledException",
        "Throttling",
        "ThrottlingError",
        "ThrottlingException",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_NO_ANSWER: Final = (boto.ConnectionError, boto.HTTPClientError, ResponseParserError)

ERRORS: Final = (boto.ClientError, boto.BotoCoreError, ResponseParserError)
"""The errors that boto3 raises about a call."""

_executors: dict[str, ThreadPoolExecutor] = {}
_clients: dict[tuple[str, int], Any] = {}
_sessions: list[Session] = []
_lock = threading.Lock()


ErrorKind: TypeAlias = Literal["lost", "repeat", "fatal"]
"""The meaning of an AWS error for its request.

lost: a condition failed, another writer was first. repeat: the request was not applied, or that is
unknown: send the same request again. fatal: it is wrong or not allowed, and can never succeed.
"""


def client(service: str, *, long_poll: bool = False) -> Any:
    """Return the process's client of `service`, such as `dynamodb`.

    With `long_poll` the client waits up to 30 s for an answer; a sender must not wait that long.
    Region, credentials and `AWS_ENDPOINT_URL_*` come from the environment.

    Raises:
        ConfigurationError: there is no region.
    """
    timeout_s = _LONG_POLL_TIMEOUT_S if long_poll else _READ_TIMEOUT_S
    with _lock:
        if (service, timeout_s) not in _clients:
            _clients[service, timeout_s] = _connect(service, timeout_s)
        return _clients[service, timeout_s]


def forget_clients() -> None:
    """Make `client` return new clients from now on, because the environment has changed."""
    with _lock:
        _clients.clear()
        _sessions.clear()


async def call(method: Callable[..., Any], /, **kwargs: Any) -> Any:
    """Run a client's method in a thread and return its answer.

    boto3 itself repeats a throttled or unanswered request twice, with the same request token. Its
    pauses depend on its version and its service: together 1.4 s or 0.04 s for an error of DynamoDB.

    Raises:
        ClientError, BotoCoreError: as boto3 raises them; `kind_of` returns their meaning.
    """
    inside = contextvars.copy_context()
    run = functools.partial(inside.run, method, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads_of(method), run)


def _threads_of(method: Callable[..., Any]) -> ThreadPoolExecutor:
    """Return the pool of the method's service.

    Each service has its own: while DynamoDB does not answer, a delivery can still be extended.
    """
    of_client = getattr(getattr(method, "__self__", None), "meta", None)
    service = of_client.service_model.service_name if of_client else ""
    with _lock:
        if service not in _executors:
            _executors[service] = ThreadPoolExecutor(THREADS, f"aws-{service}")
        return _executors[service]


async def repeat(
    method: Callable[..., Any],
    /,
    *,
    clock: Clock | None = None,
    budget_s: float | None = None,
    **kwargs: Any,
) -> Any:
    """Run `call` again with jittered back-off while its error is of the kind `repeat`.

    Use it only for requests that may be sent twice: reads, writes with a request token, and writes
    with a condition. If such a condition fails, the caller has to find out whether the item was
    changed by its own earlier request whose answer was lost.

    Time alone ends it, so that its patience is the same with every version of boto3. `budget_s`:
    seconds after which it does not call again, by default `BUDGET_S`; 0: it calls once.

    Raises:
        ConditionFailedError: the error is of the kind `lost`. Its items are those that the answer
            has, in DynamoDB's form.
        UnavailableError: no answer within `budget_s`; the request may have been applied.
        ClientError, BotoCoreError: the error is of the kind `fatal`.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + (BUDGET_S if budget_s is None else budget_s)
    attempt = 0
    while True:
        attempt += 1
        try:
            return await call(method, **kwargs)
        except ERRORS as error:
            kind = kind_of(error)
            if kind == "lost" and isinstance(error, boto.ClientError):
                raise ConditionFailedError(_failed_items(error)) from error
            if kind != "repeat":
                raise
            if clock.monotonic() >= deadline:
                msg = f"No answer from AWS after {attempt} attempts: {error}"
                raise UnavailableError(msg) from error
        await clock.sleep(pause_s(attempt))


def kind_of(error: Exception) -> ErrorKind:
    """Return the meaning of an exception of boto3 for its request."""
    if isinstance(error, _NO_ANSWER):
        return "repeat"
    if not isinstance(error, boto.ClientError):
        return "fatal"
    codes = codes_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if codes & _LOST_CODES:
        # A failed condition is final, even if other actions have errors that could be repeated.
        return "lost"
    if codes & _REPEAT_CODES or status >= _SERVER_ERROR:
        return "repeat"
    return "fatal"


def codes_of(error: Exception) -> set[str]:
    """Return the codes of an error: its own, and those of the actions of a transaction."""
    return {error_code(error), *(str(reason.get("Code")) for reason in _reasons(error))}


def error_code(error: Exception) -> str:
    """Return the code of an error, such as `ThrottlingException`; its type if it has no code.

    For logs and messages: the error's text may quote the request.
    """
    response: Any = getattr(error, "response", None) or {}
    return response.get("Error", {}).get("Code") or type(error).__name__


def is_aws(*clients: Any) -> bool:
    """Return True if clients ask AWS itself, and no emulator."""
    return all(".amazonaws." in one.meta.endpoint_url for one in clients)


class SecretText:
    """The text of a secret in Secrets Manager, in its current version; it is read at each call.

    Args:
        secret: name or ARN.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._client = client("secretsmanager")

    def read_now(self) -> str:
        """Read the text in this thread, at the start of a process.

        Raises:
            ConfigurationError: the secret cannot be read; one sentence names it and the reason.
        """
        try:
            answer = self._client.get_secret_value(SecretId=self._secret)
        except ERRORS as error:
            msg = f"The secret {self._secret} cannot be read: {error_code(error)}."
            raise ConfigurationError(msg) from error
        return self._text(answer)

    async def read(self) -> str:
        """Read the text from a running process.

        Raises:
            UnavailableError: the secret cannot be read at the moment.
            ConfigurationError: the secret has no text.
        """
        try:
            answer = await call(self._client.get_secret_value, SecretId=self._secret)
        except ERRORS as error:
            raise UnavailableError(error_code(error)) from error
        return self._text(answer)

    def _text(self, answer: Mapping[str, Any]) -> str:
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise ConfigurationError(f"The secret {self._secret} has no text.")
        return text


def _failed_items(error: boto.ClientError) -> dict[int, dict[str, Any] | None]:
    failed = {
        place: reason.get("Item")
        for place, reason in enumerate(_reasons(error))
        if reason.get("Code") in _LOST_CODES
    }
    single_write: Any = error.response
    return failed or {0: single_write.get("Item")}


def _reasons(error: Exception) -> list[Any]:
    """Return the reasons why a transaction was cancelled: one for each action, in their order."""
    response: Any = getattr(error, "response", None) or {}
    return response.get("CancellationReasons") or []


_ENDPOINTS: Final = frozenset({"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"})


def _connect(service: str, read_timeout_s: int) -> Any:
    """Return a new client; call it under the lock, because sessions are not safe under threads.

    The client is the same as boto3's. Importing boto3 itself would add 0.1 s to a cold start, and a
    second session would read the catalogue of all services again.
    """
    config = Config(
        connect_timeout=3,
        read_timeout=read_timeout_s,
        max_pool_connections=THREADS,
        retries={"mode": "standard", "total_max_attempts": 3},
        # Links need it: those of the older signature, the default in some regions, do not work for
        # encrypted objects.
        signature_version="s3v4" if service == "s3" else None,
        # They name the bucket's own region: the address without one sends on for a new bucket's
        # first hours, and a signature holds for one host. Emulators have no such addresses.
        s3={"addressing_style": "auto" if _ENDPOINTS & os.environ.keys() else "virtual"},
    )
    try:
        if not _sessions:
            _sessions.append(_session())
        return _sessions[0].create_client(service, config=config)
    except boto.NoRegionError as error:
        msg = f"There is no AWS region for {service}: set AWS_DEFAULT_REGION."
        raise ConfigurationError(msg) from error


class _Descriptions(JSONFileLoader):
    """Reads botocore's descriptions of services into plain dictionaries.

    botocore's own loader makes ordered ones, which takes 11 ms more of a cold start.
    """

    def load_file(self, file_path: str) -> Any:
        """Return what the file with `.json` or `.json.gz` at its end has; None: there is none."""
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            if os.path.isfile(file_path + ending):  # noqa: PTH113 - as `os.listdir` below
                with opened(file_path + ending, "rb") as file:
                    return json.load(file)
        return None


def _session() -> Session:
    """Return a session that takes each folder in the catalogue of services for a service.

    botocore looks into all of them, which are more than 400, before it makes the first client.
    """
    session = Session()
    catalogue = session.get_component("data_loader")
    catalogue.file_loader = _Descriptions()
    # Not `Path.is_dir`, which raises where a parent, such as the home of another user, is closed.
    folders = filter(os.path.isdir, catalogue.search_paths)
    names = [name for folder in folders for name in os.listdir(folder)]  # noqa: PTH208
    catalogue.list_available_services = lambda type_name="service-2": names  # noqa: ARG005
    return session
