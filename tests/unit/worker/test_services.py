"""What exceptions of models and other services mean for a turn."""

from __future__ import annotations

import importlib
import pkgutil
import ssl
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
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
from a2a.utils.errors import A2AError, InternalError
from google.auth.exceptions import DefaultCredentialsError, TransportError

from a2a_serverless.worker import FinalError, RetryLater
from a2a_serverless.worker.failures import is_final
from a2a_serverless.worker.services import MOST_SEEN, Passing, Refusal, meaning_of, refuses_content

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
    last = error
    for cause in causes:
        if implicit:
            last.__context__ = cause
        else:
            last.__cause__ = cause
        last = cause
    return error


PASSING = {
    **{f"httpx {status}": of_httpx(status) for status in (408, 425, 429, 500, 503)},
    "httpx connection": httpx.ConnectError("refused"),
    "httpx time-out": httpx.ReadTimeout("late"),
    "httpx cut": httpx.RemoteProtocolError("peer closed"),
    "httpx2 connection": httpx2.ConnectError("refused"),
    "openai 429": of_stainless("openai", "RateLimitError", 429),
    "openai connection": raised(
        foreign("openai", "APITimeoutError", "APIConnectionError"), httpx.ReadTimeout("late")
    ),
    "anthropic 529": of_stainless("anthropic", "OverloadedError", 529),
    "anthropic streams": of_stainless("anthropic", "APIStatusError", 200, type="overloaded_error"),
    "google 429": of_google(429),
    "google 503": foreign("google.genai.errors", "ServerError", "APIError", code=503),
    "google transport": raised(
        TransportError("no route"),  # type: ignore[no-untyped-call]
        requests.ConnectionError("no route"),
    ),
    "grpc": foreign("grpc.aio", "AioRpcError", code=lambda: type("C", (), {"name": "UNAVAILABLE"})),
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
    **{f"httpx {status}": of_httpx(status) for status in (401, 403)},
    "openai 401": of_stainless("openai", "AuthenticationError", 401),
    "anthropic 403": of_stainless("anthropic", "PermissionDeniedError", 403),
    "google 401": of_google(401),
    "no credentials": botocore.exceptions.NoCredentialsError(),
    "google without any": DefaultCredentialsError("none"),  # type: ignore[no-untyped-call]
    "aws token": of_botocore("ExpiredTokenException", 400),
    "aws denies": of_botocore("AccessDeniedException", 400),
}
USED_UP = {
    "openai quota": of_stainless("openai", "RateLimitError", 429, code="insufficient_quota"),
    "anthropic": of_stainless("anthropic", "APIStatusError", 402, type="billing_error"),
    "payment": of_httpx(402),
    "google's day": of_google(429, {"violations": [{"quotaId": "RequestsPerDayPerProject"}]}),
    "bedrock": of_botocore("ServiceQuotaExceededException", 400),
    "pydantic ai": pydantic_ai.exceptions.ModelQuotaExceededError("model", "used up"),
}
NEITHER = {
    "own": ValueError("no"),
    "own time-out": TimeoutError("the agent's own bound"),
    **{f"httpx {status}": of_httpx(status) for status in (400, 404)},
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


REFUSES = "A service that the agent calls has refused its credentials ("
NO_QUOTA = "The agent's account at a service that it calls has no quota"


@pytest.mark.parametrize(
    ("error", "says"),
    [*((each, REFUSES) for each in REFUSED), *((each, NO_QUOTA) for each in USED_UP)],
)
def test_what_does_not_pass_within_minutes(error: str, says: str) -> None:
    """401, 403 and used-up quotas, with 429 too, fail the task at once; no secret is told."""
    meaning = meaning_of({**USED_UP, **REFUSED}[error], NOW_MS)
    assert isinstance(meaning, Refusal)
    assert meaning.text.startswith(says)
    assert "told by the service" not in meaning.text


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


def throttled(*causes: BaseException) -> BaseException:
    """What Strands raises, of which its causes know more."""
    return raised(foreign("strands.types.exceptions", "ModelThrottledException"), *causes)


def circle(error: BaseException) -> BaseException:
    error.__cause__ = error
    return error


class OddError(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("not yet")


OWN_KEY = RetryLater(5, "the key is being rotated")
REFRESH = ("google.auth.exceptions", "RefreshError")
RETRY_AFTER = Message()
RETRY_AFTER["Retry-After"] = "3"
OF_URLLIB = urllib.error.HTTPError("https://x", 503, "no", RETRY_AFTER, None)
IN_A_LONG_CHAIN = raised(*[ValueError() for _ in range(MOST_SEEN)], of_httpx(503))


def group(*errors: Exception) -> BaseException:
    return ExceptionGroup("as a TaskGroup raises it", errors)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        # A framework's exception around a client's says what the client's says.
        (raised(RuntimeError("node"), KeyError(), of_httpx(503)), Passing("HTTP 503")),
        (raised(RuntimeError(), KeyError(), of_httpx(503), implicit=True), Passing("HTTP 503")),
        # A throttling without a wait takes that of its cause; a used-up quota behind it is one.
        (throttled(of_httpx(429, retry_after="8")), Passing("HTTP 429", 8)),
        (throttled(USED_UP["openai quota"]), Refusal),
        # A refusal that a fallback has answered to is not the reason of the second model's 503.
        (raised(of_httpx(503), of_httpx(401), implicit=True), Passing),
        # A group passes if each of its exceptions does; one refusal is enough to refuse.
        (group(of_httpx(503), of_httpx(429, retry_after="3")), Passing("HTTP 429", 3)),
        (group(of_httpx(503), ValueError()), None),
        (group(of_httpx(503), of_httpx(401)), Refusal),
        # Each exception is looked at once, and at most a hundred of a chain.
        (circle(ValueError()), None),
        (circle(of_httpx(503)), Passing("HTTP 503")),
        (IN_A_LONG_CHAIN, None),
        # What the agent says is not overruled.
        (raised(OWN_KEY, of_httpx(401)), Passing("the key is being rotated", 5, is_own=True)),
        # A certificate that does not hold does not begin to hold by itself.
        (raised(httpx.ConnectError("tls"), ssl.SSLCertVerificationError()), None),
        # Google says of its RefreshError whether it may be tried again.
        (foreign(*REFRESH, retryable=True), Passing),
        (foreign(*REFRESH, retryable=False), Refusal),
        # Names of headers have no case, and urllib's headers are those of a mail.
        (OF_URLLIB, Passing("HTTP 503", 3)),
        (
            foreign("mine", "OwnError", status_code=503, headers={"Retry-After": "3"}),
            Passing("HTTP 503", 3),
        ),
        # An exception whose attributes raise is a failure as any other.
        (OddError(), None),
    ],
)
def test_what_an_exception_and_its_causes_say(error: BaseException, says: Any) -> None:
    """The whole of it, or its kind."""
    meaning = meaning_of(error, NOW_MS)
    assert meaning == says or (isinstance(says, type) and isinstance(meaning, says))


FINAL = """
    ContentTypeNotSupportedError ExtendedAgentCardNotConfiguredError ExtensionSupportRequiredError
    InvalidParamsError InvalidRequestError MethodNotFoundError PushNotificationNotSupportedError
    UnsupportedOperationError VersionNotSupportedError
"""
"""The request asks for what this agent does not do, and will not do next time."""
OTHERS = """
    A2AError A2AClientError A2AClientTimeoutError AgentCardResolutionError InternalError
    InvalidAgentResponseError JSONParseError TaskNotCancelableError TaskNotFoundError
"""
"""Another agent did not answer, answered with a fault, or has lost its task."""


def classes_of(base: type[A2AError]) -> Iterator[type[A2AError]]:
    yield base
    for derived in base.__subclasses__():
        yield from classes_of(derived)


def test_each_error_of_the_sdk_is_decided() -> None:
    """A new one of the SDK is noticed; final is what refuses the request, also in a group."""
    for module in pkgutil.walk_packages(a2a.__path__, "a2a.", onerror=lambda _: None):
        with suppress(ImportError):  # needs an extra of the SDK that is not installed
            importlib.import_module(module.name)
    ours = {c.__name__: c for c in classes_of(A2AError) if c.__module__.startswith("a2a.")}
    assert sorted(ours) == sorted((FINAL + OTHERS).split())
    for name, kind in ours.items():
        raised = kind("no")
        for error in (raised, type("Own", (kind,), {})("no"), group(ValueError(), raised)):
            assert is_final(error) is (name in FINAL.split()), name
