"""What exceptions of models and other services mean for a turn."""

from __future__ import annotations

import importlib
import pkgutil
import ssl
import urllib.error
from collections.abc import Iterator
from email.message import Message
from typing import Any

import a2a
import botocore.exceptions
import httpx
import httpx2
import pydantic_ai.exceptions
import pytest
import requests
from a2a.client.errors import A2AClientError, A2AClientTimeoutError, AgentCardResolutionError
from a2a.utils import errors
from a2a.utils.errors import A2AError, InternalError
from google.auth.exceptions import DefaultCredentialsError, TransportError

from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.head import Uncounted
from a2a_serverless.worker import FinalError, RetryLater
from a2a_serverless.worker.failures import is_final
from a2a_serverless.worker.services import (
    MOST_SEEN,
    Passing,
    Refusal,
    meaning_of,
    no_longer,
    refuses_content,
)

NOW_MS = 1_700_000_000_000
"""14 November 2023, 22:13:20 UTC."""


def foreign(module: str, name: str, *bases: str, **fields: Any) -> Exception:
    """An exception as a package that is not installed here raises it."""
    kind: type[Exception] = Exception
    for each in (*reversed(bases), name):
        kind = type(each, (kind,), {"__module__": module})
    error = kind("told by the service")
    vars(error).update(fields)
    return error


def response(status: int, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=names)


def of_httpx(status: int, **headers: str) -> Exception:
    request = httpx.Request("GET", "https://model.example")
    return httpx.HTTPStatusError("no", request=request, response=response(status, **headers))


def of_botocore(code: str, status: int, **headers: str) -> Exception:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    told: Any = {
        "Error": {"Code": code},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": names},
    }
    return botocore.exceptions.ClientError(told, "Converse")


def of_stainless(module: str, name: str, status: int, **fields: Any) -> Exception:
    bases = ("APIStatusError", "APIError")
    return foreign(module, name, *bases, status_code=status, **fields)


def of_google(status: int, *details: dict[str, Any]) -> Exception:
    told = {"error": {"code": status, "details": list(details)}}
    return foreign("google.genai.errors", "ClientError", "APIError", code=status, details=told)


def raised(error: BaseException, *causes: BaseException, implicit: bool = False) -> BaseException:
    """`error` with a chain of exceptions that led to it."""
    last = error
    for cause in causes:
        if implicit:
            last.__context__ = cause
        else:
            last.__cause__ = cause
        last = cause
    return error


PASSING = {
    "httpx 408": of_httpx(408),
    "httpx 425": of_httpx(425),
    "httpx 429": of_httpx(429),
    "httpx 500": of_httpx(500),
    "httpx 503": of_httpx(503),
    "httpx connection": httpx.ConnectError("refused"),
    "httpx time-out": httpx.ReadTimeout("late"),
    "httpx cut": httpx.RemoteProtocolError("peer closed"),
    "httpx2 connection": httpx2.ConnectError("refused"),
    "openai 429": of_stainless("openai", "RateLimitError", 429),
    "openai connection": raised(
        foreign("openai", "APITimeoutError", "APIConnectionError"), httpx.ReadTimeout("late")
    ),
    "anthropic 529": of_stainless("anthropic", "OverloadedError", 529),
    "anthropic in a stream": of_stainless(
        "anthropic", "APIStatusError", 200, type="overloaded_error"
    ),
    "google 429": of_google(429),
    "google 503": foreign("google.genai.errors", "ServerError", "APIError", code=503),
    "google transport": raised(
        TransportError("no route"),  # type: ignore[no-untyped-call]
        requests.ConnectionError("no route"),
    ),
    "grpc": foreign(
        "grpc.aio", "AioRpcError", code=lambda: type("Code", (), {"name": "UNAVAILABLE"})
    ),
    "bedrock throttles": of_botocore("ThrottlingException", 429),
    "throttled with 400": of_botocore("ProvisionedThroughputExceededException", 400),
    "botocore 503": of_botocore("Other", 503),
    "botocore connection": botocore.exceptions.EndpointConnectionError(endpoint_url="https://x"),
    "botocore time-out": botocore.exceptions.ReadTimeoutError(endpoint_url="https://x"),
    "another agent's time-out": raised(A2AClientTimeoutError("late"), httpx.ReadTimeout("late")),
    "another agent's 500": InternalError("busy"),
    "another agent's card": AgentCardResolutionError("no", status_code=503),
    "pydantic ai": pydantic_ai.exceptions.ModelHTTPError(529, "model"),
    "strands": raised(
        foreign("strands.types.exceptions", "ModelThrottledException"),
        of_botocore("throttlingException", 400),
    ),
    "a status in code": foreign("mine", "OwnError", code=503),
    "requests": requests.ConnectTimeout("late"),
    "the machine's": ConnectionResetError("reset"),
}
REFUSED = {
    "httpx 401": of_httpx(401),
    "httpx 403": of_httpx(403),
    "openai 401": of_stainless("openai", "AuthenticationError", 401),
    "anthropic 403": of_stainless("anthropic", "PermissionDeniedError", 403),
    "google 401": of_google(401),
    "no credentials": botocore.exceptions.NoCredentialsError(),
    "google without any": DefaultCredentialsError("none"),  # type: ignore[no-untyped-call]
    "aws token": of_botocore("ExpiredTokenException", 400),
    "aws denies": of_botocore("AccessDeniedException", 400),
}
USED_UP = {
    "openai": of_stainless("openai", "RateLimitError", 429, code="insufficient_quota"),
    "anthropic": of_stainless("anthropic", "APIStatusError", 402, type="billing_error"),
    "payment": of_httpx(402),
    "google's day": of_google(429, {"violations": [{"quotaId": "RequestsPerDayPerProject"}]}),
    "bedrock": of_botocore("ServiceQuotaExceededException", 400),
    "pydantic ai": pydantic_ai.exceptions.ModelQuotaExceededError("model", "used up"),
}
NEITHER = {
    "own": ValueError("no"),
    "own time-out": TimeoutError("the agent's own bound"),
    "httpx 400": of_httpx(400),
    "httpx 404": of_httpx(404),
    "wrong url": httpx.UnsupportedProtocol("no scheme"),
    "final": FinalError("no"),
    "botocore 400": of_botocore("ValidationException", 400),
    "another agent": A2AClientError("no"),
    "own code": foreign("mine", "OwnError", code=1011),
    "own name of it": foreign("mine", "OwnError", code="INTERNAL", type="server_error"),
    "own status": foreign("mine", "OwnError", status_code=10**5000),
    "openai 400": of_stainless("openai", "BadRequestError", 400),
    "none": None,
}


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_a_fault_that_passes(error: BaseException) -> None:
    """Connections, time-outs, 408, 425, 429 and 5xx pass, whatever client tells of them."""
    assert isinstance(meaning_of(error, NOW_MS), Passing)


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
def test_refused_credentials(error: Exception) -> None:
    """401, 403 and their names fail the task at once; the client reads no secret."""
    meaning = meaning_of(error, NOW_MS)
    assert isinstance(meaning, Refusal)
    assert meaning.text.startswith("A service that the agent calls has refused its credentials (")
    assert "told by the service" not in meaning.text


@pytest.mark.parametrize("error", USED_UP.values(), ids=USED_UP)
def test_a_used_up_quota(error: Exception) -> None:
    """An account without quota does not come back within minutes, though it answers 429."""
    meaning = meaning_of(error, NOW_MS)
    assert isinstance(meaning, Refusal)
    assert meaning.text.startswith("The agent's account at a service that it calls has no quota")


@pytest.mark.parametrize("error", NEITHER.values(), ids=NEITHER)
def test_other_failures_say_nothing(error: Exception | None) -> None:
    """The agent's own failures, and requests that are wrong, keep their attempts."""
    assert meaning_of(error, NOW_MS) is None


@pytest.mark.parametrize(
    ("error", "asked_s"),
    [
        (of_httpx(429, retry_after="30"), 30),
        (of_httpx(503, retry_after="1.5"), 1.5),
        (of_httpx(429, retry_after_ms="1500", retry_after="2"), 1.5),
        (of_httpx(429, retry_after="Tue, 14 Nov 2023 22:14:20 GMT"), 60),
        (of_httpx(429, retry_after="Tue, 14 Nov 2023 22:12:20 GMT"), 0),
        (of_httpx(429, retry_after="-1"), 0),
        (of_httpx(429, retry_after="soon"), 0),
        (of_httpx(429, retry_after="9" * 400), 0),
        (of_botocore("ThrottlingException", 429, retry_after="7"), 7),
        (of_google(429, {"retryDelay": "12s"}), 12),
        (pydantic_ai.exceptions.ModelHTTPError(429, "m", headers={"Retry-After": "9"}), 9),
        (
            foreign(
                "openai", "RateLimitError", status_code=429, response=response(429, retry_after="4")
            ),
            4,
        ),
        (RetryLater(5, "busy"), 5),
    ],
)
def test_the_wait_that_was_asked_for(error: Exception, asked_s: float) -> None:
    """Seconds, milliseconds, a date, or Google's own form; nonsense and the past ask for none."""
    meaning = meaning_of(error, NOW_MS)
    assert isinstance(meaning, Passing)
    assert meaning.asked_s == pytest.approx(asked_s)


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (of_httpx(400), True),
        (of_stainless("openai", "BadRequestError", 413), True),
        (of_botocore("ValidationException", 400), True),
        (NotImplementedError("VideoUrl is not supported"), True),
        (raised(RuntimeError("no answer"), TypeError("format=<zip> | unsupported format")), True),
        (ValueError("a tool's own"), False),
        (of_httpx(503), False),
        (raised(of_httpx(429), ValueError("not supported")), False),
        (FinalError(client_text="Videos are not supported here."), False),
    ],
)
def test_what_is_not_taken(error: BaseException, refuses: bool) -> None:  # noqa: FBT001 - pytest's
    """A status, or the words of a library, say so; not of what passes, nor of what is final."""
    assert refuses_content(error) is refuses


@pytest.mark.parametrize("implicit", [True, False])
def test_the_chain_is_looked_at(implicit: bool) -> None:  # noqa: FBT001 - pytest's
    """A framework's exception around a client's says what the client's says."""
    error = raised(RuntimeError("node failed"), KeyError(), of_httpx(503), implicit=implicit)
    assert meaning_of(error, NOW_MS) == Passing("HTTP 503")


def test_a_cause_adds_what_the_library_has_left_out() -> None:
    """A throttling without a wait takes that of its cause; a used-up quota behind it is one."""
    throttled = foreign("strands.types.exceptions", "ModelThrottledException")
    waits = raised(throttled, of_httpx(429, retry_after="8"))
    assert meaning_of(waits, NOW_MS) == Passing("HTTP 429", 8)
    used_up = raised(
        foreign("strands.types.exceptions", "ModelThrottledException"), USED_UP["openai"]
    )
    assert isinstance(meaning_of(used_up, NOW_MS), Refusal)


def test_what_came_before_does_not_outweigh_a_fault() -> None:
    """A refusal that a fallback has answered to is not the reason of the second model's 503."""
    second = raised(of_httpx(503), of_httpx(401), implicit=True)
    assert isinstance(meaning_of(second, NOW_MS), Passing)


def test_a_group_says_what_all_of_it_say() -> None:
    """A group passes if each of its exceptions does; one refusal is enough to refuse."""
    both = ExceptionGroup("two", [of_httpx(503), of_httpx(429, retry_after="3")])
    assert meaning_of(both, NOW_MS) == Passing("HTTP 429", 3)
    assert meaning_of(ExceptionGroup("mixed", [of_httpx(503), ValueError()]), NOW_MS) is None
    refused = ExceptionGroup("refused", [of_httpx(503), of_httpx(401)])
    assert isinstance(meaning_of(refused, NOW_MS), Refusal)


def test_a_circle_and_a_long_chain_end() -> None:
    """Each exception is looked at once, and at most a hundred of a chain."""
    one, two = ValueError(), KeyError()
    raised(one, two, one)
    assert meaning_of(one, NOW_MS) is None
    links = [ValueError() for _ in range(MOST_SEEN)]
    assert meaning_of(raised(*links, of_httpx(503)), NOW_MS) is None
    circle = of_httpx(503)
    circle.__cause__ = circle
    assert meaning_of(circle, NOW_MS) == Passing("HTTP 503")


def test_what_the_agent_says_is_not_overruled() -> None:
    """The causes of RetryLater change nothing of it."""
    for cause in (of_httpx(401), of_httpx(429, retry_after="3600")):
        later = raised(RetryLater(5, "the key is being rotated"), cause)
        assert meaning_of(later, NOW_MS) == Passing("the key is being rotated", 5, is_own=True)


def test_a_certificate_that_does_not_hold_is_no_absence() -> None:
    """It does not begin to hold by itself."""
    error = raised(httpx.ConnectError("tls"), ssl.SSLCertVerificationError())
    assert meaning_of(error, NOW_MS) is None


def test_a_token_that_is_not_refreshed_for_a_moment_passes() -> None:
    """Google says of its RefreshError whether it may be tried again."""
    passing = foreign("google.auth.exceptions", "RefreshError", retryable=True)
    assert isinstance(meaning_of(passing, NOW_MS), Passing)
    refused = foreign("google.auth.exceptions", "RefreshError", retryable=False)
    assert isinstance(meaning_of(refused, NOW_MS), Refusal)


def test_headers_of_any_kind() -> None:
    """Names of headers have no case, and urllib's headers are those of a mail."""
    headers = Message()
    headers["Retry-After"] = "3"
    of_urllib = urllib.error.HTTPError("https://x", 503, "no", headers, None)
    plain = foreign("mine", "OwnError", status_code=503, headers={"Retry-After": "3"})
    for error in (of_urllib, plain):
        assert meaning_of(error, NOW_MS) == Passing("HTTP 503", 3)


def test_the_end_of_the_waits_is_told_as_it_is() -> None:
    """Without a wait that was asked for, the client reads how often the service was not there."""
    waited = Uncounted(faults=4, waited=900_000)
    text = no_longer(Passing("HTTP 503"), waited, RetryPolicy())
    assert text.startswith("A service that the agent calls was not there at 5 starts (HTTP 503):")


def test_a_property_that_raises_says_nothing() -> None:
    """A foreign exception whose attributes raise is a failure as any other."""

    class OddError(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not yet")

    assert meaning_of(OddError(), NOW_MS) is None


DECIDED: dict[type[A2AError], bool] = {
    # The request asks for what this agent does not do, and will not do next time.
    errors.ContentTypeNotSupportedError: True,
    errors.ExtendedAgentCardNotConfiguredError: True,
    errors.ExtensionSupportRequiredError: True,
    errors.InvalidParamsError: True,
    errors.InvalidRequestError: True,
    errors.MethodNotFoundError: True,
    errors.PushNotificationNotSupportedError: True,
    errors.UnsupportedOperationError: True,
    errors.VersionNotSupportedError: True,
    # Another agent did not answer, answered with a fault, or has lost its task.
    A2AError: False,
    A2AClientError: False,
    A2AClientTimeoutError: False,
    AgentCardResolutionError: False,
    errors.InternalError: False,
    errors.InvalidAgentResponseError: False,
    errors.JSONParseError: False,
    errors.TaskNotCancelableError: False,
    errors.TaskNotFoundError: False,
}


def classes_of(base: type[A2AError]) -> Iterator[type[A2AError]]:
    yield base
    for derived in base.__subclasses__():
        yield from classes_of(derived)


def test_each_error_of_the_sdk_is_decided() -> None:
    """A release of the SDK with another error is noticed here: is a further attempt of use?"""
    for module in pkgutil.walk_packages(a2a.__path__, "a2a.", onerror=lambda _: None):
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue  # needs an extra of the SDK that is not installed
    ours = {cls for cls in classes_of(A2AError) if cls.__module__.startswith("a2a.")}
    assert ours == set(DECIDED)


@pytest.mark.parametrize("error", DECIDED, ids=lambda cls: cls.__name__)
def test_an_error_of_the_sdk_is_final_or_passing(error: type[A2AError]) -> None:
    """Final is what refuses the request itself; subclasses and groups are as their errors."""
    raised = error("no")
    assert is_final(raised) is DECIDED[error]
    assert is_final(type("Own", (error,), {})("no")) is DECIDED[error]
    assert (
        is_final(ExceptionGroup("as a TaskGroup raises it", [ValueError(), raised]))
        is (DECIDED[error])
    )
