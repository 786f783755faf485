"""What an exception of a service that an agent calls means for the turn.

Its HTTP status decides, and Retry-After says when to start again. Libraries that the runtime does
not import tell both in a few attributes. Two short tables have a status for what has none, or has
another one: codes in a service's answer, and classes of exceptions.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any, Final, TypeAlias

from a2a_serverless.tasks.attempts import MOST_STARTS, RetryPolicy, left_of
from a2a_serverless.tasks.head import Uncounted
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import RetryLater, is_final, members

MOST_SEEN: Final = 100
"""The most exceptions, of chains and groups, that are looked at."""

REFUSED_CREDENTIALS: Final = "A service that the agent calls has refused its credentials ({what})."
USED_UP: Final = "The agent's account at a service that it calls has no quota left ({what})."


@dataclass(frozen=True, slots=True)
class Passing:
    """A fault that passes by itself, so that the turn is started again later."""

    what: str
    """What the turn waits for: a status such as `HTTP 429`, or the agent's own reason."""
    asked_s: float = 0
    """The wait that the service or the agent has asked for, in seconds."""
    is_own: bool = False
    """True if the agent has asked for the wait itself."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that every further start would get as well; `text` says it to the client."""

    text: str
    is_of_key: bool = False
    """True if the agent's credentials were refused."""


Meaning: TypeAlias = Passing | Refusal | None


def meaning_of(error: BaseException | None, now_ms: int) -> Meaning:
    """Return what an agent's exception means; None: it may be the agent's own fault.

    The first exception in the chain that says something counts. Its causes may add what a library
    has left out: a wait that was asked for, or that it is a refusal after all. What the agent says
    itself, by RetryLater, its causes do not change. A group passes if each of its exceptions does,
    and is a refusal if one of them is. `now_ms`: the time with which a date of the service is
    compared.
    """
    return _of_chain(error, now_ms, set())


def refuses_content(error: BaseException) -> bool:
    """Return True if a service, or its library, does not take what it was sent.

    An error with which the agent itself ends the task is none.
    """
    if is_final(error) or meaning_of(error, 0) is not None:
        return False
    return any(
        _status_of(each) in _NOT_TAKEN or _UNSUPPORTED.search(str(each))
        for each, _ in _chain(error, set())
    )


def _of_chain(error: BaseException | None, now_ms: int, seen: set[int]) -> Meaning:
    """Return what a chain of exceptions means, without those that were `seen`."""
    found: list[Passing] = []
    for each, is_cause in _chain(error, seen):
        if isinstance(each, ssl.SSLCertVerificationError):
            return None  # it does not begin to hold by itself
        if found and not is_cause:
            break
        if isinstance(each, BaseExceptionGroup):
            meanings = [_of_chain(one, now_ms, seen) for one in _members(each, seen)]
        else:
            meanings = [_own_meaning(each, now_ms)]
        for meaning in meanings:
            if isinstance(meaning, Refusal) or (isinstance(meaning, Passing) and meaning.is_own):
                return meaning
        passing = [one for one in meanings if isinstance(one, Passing)]
        if len(passing) == len(meanings):
            found += passing
        elif isinstance(each, BaseExceptionGroup):
            break
    return max(found, key=lambda one: one.asked_s, default=None)


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[tuple[BaseException, bool]]:
    """Yield an exception and those that led to it, as a traceback shows them, each once.

    With each, True if it is the explicit cause of the one before. `MOST_SEEN` are looked at in all.
    """
    is_cause = True
    while error is not None and id(error) not in seen and len(seen) < MOST_SEEN:
        seen.add(id(error))
        yield error, is_cause
        is_cause = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if is_cause else error.__context__


def _members(group: BaseExceptionGroup[BaseException], seen: set[int]) -> list[BaseException]:
    """Return the exceptions of a group that were not seen, those of inner groups among them."""
    alone = (one for one in members(group) if not isinstance(one, BaseExceptionGroup))
    return list(islice((one for one in alone if id(one) not in seen), MOST_SEEN))


def _own_meaning(error: BaseException, now_ms: int) -> Meaning:
    """Return what one exception says, without those that led to it."""
    if isinstance(error, RetryLater):
        return Passing(error.reason, error.after_s, is_own=True)
    told, code, names = _status_of(error), _code_of(error), _names(error)
    named = 0 if told else next((_NAMED[name] for name in names if name in _NAMED), 0)
    if named == _REFUSED and _get(error, "retryable") is True:
        named = _BUSY  # google's, while it refreshes a token
    status = _CODES.get(_plain(code)) or told or named
    if _is_daily_quota(error):
        status = _USED_UP
    parts = (f"HTTP {told}" if told >= _FIRST_ERROR else "", code)
    what = ", ".join(each for each in parts if each)
    if status == _USED_UP:
        return Refusal(USED_UP.format(what=what or type(error).__name__))
    if status in (_REFUSED, _FORBIDDEN):
        text = REFUSED_CREDENTIALS.format(what=what or type(error).__name__)
        return Refusal(text, is_of_key=True)
    if status in _PASSING or status // 100 == 5:  # noqa: PLR2004 - HTTP's
        timed_out = any("Timeout" in name for name in names)
        what = what or ("time-out" if timed_out else "no connection")
        return Passing(what, _asked_s(error, now_ms))
    return None


# -- what an exception says ----------------------------------------------------------------------


def _names(error: BaseException) -> list[str]:
    """Return the exception's classes, each as its package and its name, its own first."""
    kinds = type(error).__mro__
    return [f"{kind.__module__.split('.', 1)[0]}.{kind.__name__}" for kind in kinds]


def _get(value: object, name: str) -> Any:
    """Return an attribute, or an item of a mapping; None if there is none, or if it raises."""
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign exception may raise anything
        return None


def _status_of(error: BaseException) -> int:
    """Return the HTTP status that the exception tells; 0: none."""
    response = _get(error, "response")
    told = (
        _get(error, "status_code"),
        _get(response, "status_code"),
        _get(_get(response, "ResponseMetadata"), "HTTPStatusCode"),
        _get(error, "code"),
        _get(error, "status"),
    )
    return next((int(it) for it in told if isinstance(it, int) and it in _STATUSES), 0)


def _code_of(error: BaseException) -> str:
    """Return the service's name for the error, such as `ThrottlingException`; empty: none.

    Names beside a status or an answer's body alone are a service's: an agent may use the same ones.
    """
    code = _get(error, "code")
    told = [_get(_get(_get(error, "response"), "Error"), "Code")]
    if type(error).__module__.startswith("grpc") and callable(code):
        with suppress(Exception):  # a foreign method, which may raise anything
            told.append(_get(code(), "name"))
    if hasattr(error, "body") or hasattr(error, "status_code"):
        body = _get(_get(error, "body"), "error")
        told += [code, _get(error, "provider_error_code"), _get(error, "type"), _get(body, "type")]
    return next((it for it in told if isinstance(it, str) and _plain(it) in _CODES), "")


def _plain(code: str) -> str:
    """Return a code as `_CODES` has it: AWS writes some with a capital, some as an exception."""
    return re.sub("_?(error|exception)", "", code.lower())


def _asked_s(error: BaseException, now_ms: int) -> float:
    """Return the seconds that the service asks to wait; 0 if it does not say, or nonsense."""
    response = _get(error, "response")
    headers = [
        _get(response, "headers"),
        _get(error, "headers"),
        _get(_get(response, "ResponseMetadata"), "HTTPHeaders"),
    ]
    told = [_seconds(_header(each, "retry-after-ms")) / 1000 for each in headers]
    told += [_seconds(_header(each, "retry-after")) for each in headers]
    told += [_seconds_until(_header(each, "retry-after"), now_ms) for each in headers]
    told += [_seconds(_get(error, "retry_after")), _google_delay_s(error)]
    return next((each for each in told if each > 0), 0)


def _header(headers: object, name: str) -> object:
    """Return a header of a mapping, whatever the case of its names, or of a message; or None."""
    if isinstance(headers, Mapping):
        return next((value for key, value in headers.items() if str(key).lower() == name), None)
    get = _get(headers, "get")
    return get(name) if isinstance(headers, Message) and callable(get) else None


def _seconds(value: object) -> float:
    """Return a number of seconds from now on; 0 if it is none."""
    try:
        seconds = float(value) if isinstance(value, str | int | float) else 0
    except (ValueError, OverflowError):
        return 0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0


def _seconds_until(date: object, now_ms: int) -> float:
    """Return the seconds until a date of HTTP; 0 if it is past, or none."""
    try:
        at = parsedate_to_datetime(date[:_LONGEST_DATE]) if isinstance(date, str) else None
        return 0 if at is None else max(0, at.timestamp() - now_ms / 1000)
    except (ValueError, TypeError, OverflowError):
        return 0


def _google_details(error: BaseException) -> list[Any]:
    """Return the details of an error of Google's APIs (google.rpc.Status)."""
    details = _get(error, "details")
    details = _get(_get(details, "error"), "details")
    return details if isinstance(details, list) else []


def _google_delay_s(error: BaseException) -> float:
    delays = (_get(each, "retryDelay") for each in _google_details(error))
    return next((_seconds(each.removesuffix("s")) for each in delays if isinstance(each, str)), 0)


def _is_daily_quota(error: BaseException) -> bool:
    """Return True if a day's quota of Google is used up: it does not pass within minutes."""
    violations = (_get(each, "violations") for each in _google_details(error))
    listed = [one for each in violations if isinstance(each, list) for one in each]
    return any("PerDay" in str(_get(one, "quotaId")) for one in listed)


_LONG_S: Final = 120
"""Seconds from which on a time is told in minutes."""

# -- what services say -----------------------------------------------------------------------------

_LONGEST_DATE: Final = 64
"""Characters of a date that are read."""

_STATUSES: Final = range(100, 600)
_FIRST_ERROR: Final = 400
_REFUSED: Final = 401
_USED_UP: Final = 402
_FORBIDDEN: Final = 403
_BUSY: Final = 503
_PASSING: Final = frozenset({408, 425, 429})
"""HTTP statuses that pass, beside all from 500 on: 529 is a model's overload."""
_NOT_TAKEN: Final = frozenset({400, 413, 415, 422})
_UNSUPPORTED: Final = re.compile(
    r"unsupported|not support|only .* supported|unknown media type", re.IGNORECASE
)
"""What libraries say of content that they cannot write for their service."""


def _statuses(*rows: tuple[int, str]) -> Mapping[str, int]:
    """Return a status for each word of the rows."""
    return {word: status for status, words in rows for word in words.split()}


_CODES: Final = _statuses(
    # AWS answers these with 400, or in a stream that has begun with 200.
    (_BUSY, "throttling requestlimitexceeded provisionedthroughputexceeded"),
    (_BUSY, "internalserver serviceunavailable modelstream modeltimeout requesttimeout"),
    (_REFUSED, "accessdenied expiredtoken invalidsignature incompletesignature"),
    (_REFUSED, "unrecognizedclient"),
    (_USED_UP, "servicequotaexceeded"),
    # Anthropic and OpenAI in such a stream; what is used up has 429.
    (_BUSY, "api overloaded rate_limit rate_limit_exceeded server timeout"),
    (_USED_UP, "billing billing_hard_limit_reached billing_not_active insufficient_quota"),
    # gRPC has statuses of its own.
    (_BUSY, "aborted deadline_exceeded internal resource_exhausted unavailable"),
    (_REFUSED, "permission_denied unauthenticated"),
)
"""The statuses that codes stand for, whatever status is beside them."""
_NAMED: Final = _statuses(
    # A wrong URL is the agent's own fault, though it is of a class of the next row.
    (_FIRST_ERROR, "httpx.LocalProtocolError httpx.UnsupportedProtocol requests.InvalidURL"),
    (_FIRST_ERROR, "httpx2.LocalProtocolError httpx2.UnsupportedProtocol"),
    (_FIRST_ERROR, "urllib3.LocationValueError"),
    # No connection, or no answer in time: SDKs and frameworks name one of these as the cause.
    (_BUSY, "builtins.ConnectionError socket.gaierror urllib.URLError urllib3.HTTPError"),
    (_BUSY, "httpx.TransportError httpx2.TransportError requests.ConnectionError requests.Timeout"),
    (_BUSY, "aiohttp.ClientConnectionError aiohttp.ClientPayloadError"),
    (_BUSY, "botocore.ConnectionError botocore.HTTPClientError"),
    (_BUSY, "agents.ModelTimeoutError pydantic_ai.ModelConnectionError"),
    (_BUSY, "a2a.InternalError"),  # another agent's server: its 500
    # No credentials, or no money.
    (_REFUSED, "botocore.NoCredentialsError botocore.PartialCredentialsError"),
    (_REFUSED, "google.DefaultCredentialsError google.RefreshError"),
    (_USED_UP, "pydantic_ai.ModelQuotaExceededError"),
)
"""The statuses that stand for classes of exceptions that have none; the first class counts."""


# -- sentences for the client ----------------------------------------------------------------------


def waits(passing: Passing, until_ms: int) -> str:
    """Return what a turn waits for, and until when."""
    at = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="seconds")
    at = at.replace("+00:00", "Z")
    if passing.is_own:
        return f"The agent waits{_for(passing)} and starts again at {at}."
    return f"The agent waits for a service that it calls{_for(passing)} and starts again at {at}."


def no_longer(passing: Passing, uncounted: Uncounted, retry: RetryPolicy) -> str:
    """Return why a turn is not started again after a fault that passes."""
    what = "What the agent waits for" if passing.is_own else "A service that the agent calls"
    left_s = max(0.0, left_of(uncounted, retry))
    if uncounted.faults + 1 < MOST_STARTS and passing.asked_s > left_s:
        return (
            f"{what} will not be there for {_length(passing.asked_s)}{_for(passing)}, and of the"
            f" {_length(retry.window_s)} for which this agent waits {_length(left_s)} are left:"
            " send the message again later."
        )
    return (
        f"{what} was not there at {uncounted.faults + 1} starts{_for(passing)}: send the message"
        " again later."
    )


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _LONG_S else f"{seconds / 60:,.0f} minutes"


def _for(passing: Passing) -> str:
    return f" ({passing.what})" if passing.what else ""
