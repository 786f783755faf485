"""The failures of an agent and of an attempt: what is wrong, and where the author wrote it."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path, PurePath
from types import FrameType, MappingProxyType
from typing import Any, Final, TypeVar

from a2a.helpers import new_data_part
from a2a.types import Message, Part
from a2a.utils import errors
from google.protobuf.json_format import ParseError

from a2a_serverless.errors import (
    A2AServerlessError,
    ConfigurationError,
    InvalidAgentEventError,
    InvalidArgumentError,
)
from a2a_serverless.tasks.identity import unicode_of

T = TypeVar("T")

_RUNTIME: Final = (f"{Path(__file__).parents[1]}/", "<frozen")
_LIBRARIES: Final = (
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *_RUNTIME,
    "/opt/python/",  # Lambda's layers
    "/var/runtime/",
    "/var/lang/",
)
_TOOLS: Final = "/a2a_serverless_tools/"
"""The folder of the commands, wherever they are installed."""


def is_library(file: str) -> bool:
    """Return True if a file is Python's, a package's or this runtime's, and not the author's."""
    return file.startswith(_LIBRARIES) or _TOOLS in file


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the author's, from `frame` outwards; None if there is none."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def raised_at(error: BaseException) -> str:
    """Return `FILE, line N, in FUNCTION`, the author's innermost line of what ended an attempt.

    Without a line of the author's it is a package's or Python's; empty if there is none either.
    FILE is relative to the folder of `sys.path` that has it, such as the agent's. Of a group it is
    the line of its first exception. Of more than `MOST_PLACE` bytes the last ones are returned.
    """
    if known := getattr(error, "place", ""):
        return _in_its_folder(known)
    cause = error.__cause__ or error
    first = _first_in(cause)
    is_ours = type(first).__module__.startswith("a2a_serverless.")  # such as the error of a step
    inner = first.__cause__ if is_ours else None
    lines = [
        (frame.f_code.co_filename, number, frame.f_code.co_name)
        for raised in (inner, first, cause)
        if raised is not None
        for frame, number in reversed([*traceback.walk_tb(raised.__traceback__)])
    ]
    foreign = [line for line in lines if not line[0].startswith(_RUNTIME) and _TOOLS not in line[0]]
    own = (line for line in foreign if not is_library(line[0]))
    for file, number, function in (*own, *foreign):
        return _in_its_folder(f"{place(file, number)}, in {function}")
    return ""


def text_of(error: BaseException, most: int) -> str:
    """Return the beginning of the text of what ended an attempt, at most `most` bytes.

    Of a group it is that of its first exception, with its name. Empty for an exception that cannot
    be shown as text.
    """
    cause = error.__cause__ or error
    one = _first_in(cause)
    try:
        text = str(one)
    except Exception:  # noqa: BLE001 - the author's code, in the way of ending the attempt
        return ""
    named = text if one is cause else f"{type(one).__name__}: {text}"
    return _plain(named[:most])[:most].decode(errors="ignore")


def _first_in(error: BaseException) -> BaseException:
    """Return the first exception of a group and of its inner groups; another one itself."""
    each = (one for one in members(error) if not isinstance(one, BaseExceptionGroup))
    return next(each, error)


def _in_its_folder(line: str) -> str:
    """Return a line's place without the folder from which its file is imported."""
    folders = [f"{folder.rstrip('/')}/" for folder in sys.path if folder.startswith("/")]
    line = line.removeprefix(max(filter(line.startswith, folders), key=len, default=""))
    return _plain(line)[-MOST_PLACE:].decode(errors="ignore")


def _plain(text: str) -> bytes:
    """Return a text in one line, without control and hidden characters, as it can be stored."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).encode()


def own_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the author's lines of a traceback, the innermost last; empty if it has none."""
    lines = traceback.extract_tb(error.__traceback__)
    return [line for line in lines if not is_library(line.filename)]


def _place_of_error(error: BaseException) -> str:
    """Return `FILE, line N` of the author's innermost line of a traceback; empty without one."""
    lines = own_lines(error)
    return place(lines[-1].filename, lines[-1].lineno) if lines else ""


def where(error: BaseException) -> str:
    """Return ` (FILE, line N)` for an error that knows its `place`, or has a line of the author's.

    Empty for others.
    """
    known = getattr(error, "place", "") or _place_of_error(error)
    return f" ({known})" if known else ""


def place_of_function(function: Callable[..., Any]) -> str:
    """Return `FILE, line N` where a function begins; empty if it was not written in a file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else place(code.co_filename, code.co_firstlineno)


def place(file: str, line: int | None) -> str:
    """Return a line of a file as messages name it."""
    return f"{file}, line {line}"


REFUSALS = (
    errors.ContentTypeNotSupportedError,
    errors.ExtendedAgentCardNotConfiguredError,
    errors.ExtensionSupportRequiredError,
    errors.InvalidParamsError,
    errors.InvalidRequestError,
    errors.MethodNotFoundError,
    errors.PushNotificationNotSupportedError,
    errors.UnsupportedOperationError,
    errors.VersionNotSupportedError,
)
"""The SDK's errors that refuse the request itself: the next attempt would be refused as well.

The SDK's other errors report a fault that may pass, mostly of another agent that this one calls.
"""


MOST_REASON = 200
"""The most characters of a reason that are stored and shown."""
MOST_PLACE: Final = 88
MOST_OF_ERROR: Final = 168
"""The most bytes of an error's place, and of its place and text together, that are stored with the
end of an attempt: with them HEAD stays below a KB."""
MOST_CLIENT_TEXT = 1000
"""The most characters of a final exception's text for the client."""
MOST_MEMBERS = 10_000
"""The most exceptions of a group that are looked at."""
MOST_WAIT_S = 1e10
"""The most seconds of a wait that is asked for."""
_SHOWN = 60
"""The most characters of a wrong argument that are shown."""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`. One such
    exception in an exception group is enough.

    >>> raise FinalError("unknown account 7", client_text="There is no such account.")

    Args:
        message: goes to the log.
        client_text: the reason that the client reads; without it the client gets a fixed sentence.
    """

    final = True
    client_text = ""

    def __init__(self, message: str = "", *, client_text: str = "") -> None:
        super().__init__(message or client_text)
        self.client_text = sayable(client_text, MOST_CLIENT_TEXT)


class RetryLater(Exception):  # noqa: N818 - it reads as what the agent wants
    """Raised by an agent: start the turn again later, because what it needs is not there yet.

    It uses up no attempt, and no worker waits meanwhile. The turn is started at most ten times in
    all, and all its waits together are at most `A2A_RETRY_MINUTES`; beyond that its task fails.

    >>> raise RetryLater(30, "the index is built")

    Args:
        after_s: the least seconds until the next start. The wait is longer if the turn's growing
            back-off is.
        reason: what the turn waits for, in a few words; the client and the operator read it.

    Raises:
        WrongCallError: `after_s` is no number from 0 to `MOST_WAIT_S`, or `reason` is no text.
    """

    def __init__(self, after_s: float, reason: str = "") -> None:
        most, way = f"{MOST_WAIT_S:,.0f}", "`RetryLater(30, 'the index is built')`"
        takes = f"RetryLater takes the seconds to wait, a number from 0 to {most}"
        expect(after_s, lambda it: is_seconds(it) and it <= MOST_WAIT_S, takes, way)
        expect(reason, str, "RetryLater takes its reason as a text", way)
        self.after_s = float(after_s)
        self.reason = sayable(" ".join(reason.split()), MOST_REASON)
        super().__init__(f"again in {self.after_s:g} s: {self.reason or 'no reason given'}")


class WrongCallError(InvalidArgumentError, TypeError):
    """The agent has called its TaskContext with a value of the wrong type.

    The message spells out the right call. The next attempt would do the same, so the task fails.
    """

    final = True


class RecordTooLargeError(WrongCallError):
    """What is to be recorded has more bytes than a record may have."""


class WrongMethodError(InvalidAgentEventError):
    """A method of the agent takes other arguments, is not `async`, or yields.

    The message has the right form.
    """


class AgentNotLoadedError(InvalidAgentEventError):
    """The agent of `dev` cannot be loaded: the turn fails, and its client reads why."""


class AgentFailedError(A2AServerlessError):
    """The agent raised; the cause is its exception."""


class StaleStateError(A2AServerlessError):
    """The conversation's state has changed since the turn loaded it: the turn has to start over.

    This is no ConcurrencyError: the attempt still owns the turn, and has to settle it.
    """


class DeadlineError(A2AServerlessError):
    """The invocation's time is running out."""

    def __init__(self, step: str = "") -> None:
        super().__init__()
        self.step = step
        """A step that runs; empty if none does."""


def sayable(text: str, most: int) -> str:
    """Return the first characters of a text, as one that can be stored."""
    made: str = unicode_of(text[:most])
    return made


def _short(value: object) -> str:
    try:
        text = sayable(repr(value), _SHOWN + 1)
    except ValueError:  # a number with too many digits
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_final(error: BaseException | None) -> bool:
    """Return True if the exception says that no further attempt can succeed.

    In a group, such as a TaskGroup raises, one such exception is enough: it would come again.
    """
    return any(
        isinstance(one, REFUSALS) or bool(getattr(one, "final", False)) for one in members(error)
    )


def client_text_of(error: BaseException | None) -> str:
    """Return what a final exception, or one of a group, says to the client; empty: nothing."""
    texts = (one.client_text for one in members(error) if isinstance(one, FinalError))
    return next(filter(None, texts), "")


def members(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those of its group and of inner groups, in order, however deep.

    At most `MOST_MEMBERS`, groups included.
    """
    waiting = [] if error is None else [error]
    for _ in range(MOST_MEMBERS):
        if not waiting:
            return
        one = waiting.pop()
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)


def comes_of_forgetting(error: BaseException) -> bool:
    """Return True for an error that arises when code uses a coroutine instead of its result."""
    return isinstance(error, TypeError | AttributeError) and "coroutine" in str(error)


def reason_of(error: BaseException) -> str:
    """Return the name of the error that ends an attempt; if it has a cause, the name of that."""
    return type(error.__cause__ or error).__name__


@contextmanager
def log_exceptions(
    log: logging.Logger,
    level: int,
    text: str,
    *,
    action: str,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[None]:
    """Log an exception of the block and go on after it, for loops and processes that must survive.

    A ConfigurationError says all in its sentence, and is logged without its traceback. `fields` are
    added to the line as they are when the exception comes.
    """
    try:
        yield
    except Exception as error:
        extra, says_all = {"action": action, **fields}, isinstance(error, ConfigurationError)
        said = ("%s: %s", text, error) if says_all else (text,)
        # The line names the place of the block, not this one.
        log.log(level, *said, extra=extra, exc_info=not says_all, stacklevel=3)


_ENDINGS_WITH_DATA = frozenset({"complete", "complete_json", "respond", "reply_directly"})
_CONTEXT = f"{__name__.rpartition('.')[0]}.context"
_DECORATOR = f"{__name__.rpartition('.')[0]}.loops"
_BY_VALUE = "await ctx.emit_artifact(…, file_bytes=…, media_type=…)"


def expect(value: object, kind: type | Callable[[Any], bool], takes: str, way: str) -> None:
    """Raise WrongCallError if the agent has called something with a value that it does not take.

    >>> expect(30, is_seconds, "ctx.sleep takes seconds, a number from 0 on", "`ctx.sleep(3600)`")

    Args:
        value: what the agent has passed.
        kind: the type that it has to have, or a function that is true of it.
        takes: the beginning of the sentence: the call, and what it takes.
        way: how to write it, with an example.
    """
    if isinstance(value, kind) if isinstance(kind, type) else kind(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # else it would be named as one whose await was forgotten
    raise WrongCallError(f"{takes}, and got {_named(value)}: {way}.")


def is_seconds(value: object) -> bool:
    """Return True for a finite number from 0 on."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf  # type: ignore[operator]


def is_plain_function(value: object) -> bool:
    """Return True for what can be called, and is not async."""
    return callable(value) and not inspect.iscoroutinefunction(value)


def _named(value: object) -> str:
    """Return a value as a sentence says it: a short one as it is, another one by its type."""
    if inspect.iscoroutinefunction(value):
        return f"{getattr(value, '__name__', 'a function')}, which is async"
    if value is None or isinstance(value, str | int | float | datetime):
        return _short(value)
    return f"a {type(value).__name__}"


def expect_text(value: Any) -> str:
    """Return a text that the agent has passed; call it from within a TaskContext.

    Raises:
        WrongCallError: it is none; the message spells out the right call.
    """
    if not isinstance(value, str):
        method = _method()
        kind = "None" if value is None else f"a {type(value).__name__}"
        way = _text_instead(method, value)
        raise WrongCallError(f"ctx.{method} takes a text, and got {kind}: {way}.")
    return value


def refused_data(value: object, error: Exception, wanted: str = "a JSON value") -> WrongCallError:
    """Return the error for data that is no JSON value; it names the first part that is none.

    `error` is the encoder's, for data of which each part is one: it may have no end.
    """
    try:
        found = _no_json("data", value)
    except RecursionError:
        found = None
    said = f"this is none: {error}"
    if found is not None:
        where, wrong = found
        said = f"{where} is a {type(wrong).__name__}: {json_instead(wrong)}."
    return WrongCallError(f"ctx.{_method()} takes {wanted}, and {said}")


def refuse_work(work: Sequence[object]) -> None:
    """Raise WrongCallError unless all of `work` can be awaited; what was begun is closed."""
    wrong = [one for one in work if not inspect.isawaitable(one)]
    if not wrong:
        return
    inner = [one for each in wrong if isinstance(each, list | tuple | set) for one in each]
    for one in (*work, *inner):
        if inspect.iscoroutine(one):
            one.close()  # else it would be named as one whose await was forgotten
    kind = type(wrong[0]).__name__
    way = "ctx.gather(fetch(…))" if callable(wrong[0]) else "ctx.gather(*work)"
    msg = f"ctx.gather takes coroutines, one by one, and got a {kind}: write `await {way}`."
    raise WrongCallError(msg)


def _no_json(where: str, value: object) -> tuple[str, object] | None:
    """Return the first part of a value that JSON does not have, and where it is."""
    if value is None or isinstance(value, str | bool | int | float):
        return None
    if isinstance(value, dict):
        keys = ((f"a key of {where}", key) for key in value if not isinstance(key, str))
        parts = ((f"{where}[{key!r}]", item) for key, item in value.items())
        return next(keys, None) or _first_of(parts)
    if isinstance(value, list):
        return _first_of((f"{where}[{number}]", item) for number, item in enumerate(value))
    return where, value


def _first_of(parts: Iterable[tuple[str, object]]) -> tuple[str, object] | None:
    found = (_no_json(where, item) for where, item in parts)
    return next(filter(None, found), None)


def json_instead(value: object) -> str:
    """Return what to write instead of a value that JSON does not have."""
    if inspect.isawaitable(value):
        return "await it first"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return "collect what it yields in a list"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"for a file write `{_BY_VALUE}`, for its text `.decode()`"
    if callable(getattr(value, "model_dump", None)):
        return 'write `….model_dump(mode="json")`'
    if dataclasses.is_dataclass(value):
        return "write `dataclasses.asdict(…)`"
    if isinstance(value, tuple | AbstractSet):
        return "write `list(…)`"
    return "write `str(…)`, or make it of dict, list, str, int, float, bool and None"


def _text_instead(method: str, value: object) -> str:
    """Return how to write the call for a value that is not a text."""
    by_text = f"`await ctx.{method}(…)`"
    if value is None:
        return f'the text is missing; if there may be none, write `await ctx.{method}(… or "")`'
    if inspect.isawaitable(value):
        return f"await it first, and pass what it gives to {by_text}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"for a file write `{_BY_VALUE}`, for its text `.decode()`"
    if isinstance(value, Part | Message):
        return f"pass the text of a part, `part.text`, to {by_text}"
    if isinstance(value, BaseException | PurePath):
        return f"write `await ctx.{method}(str(…))`"
    data = "complete_json" if method in _ENDINGS_WITH_DATA else "emit_data_artifact"
    return f"for data write `await ctx.{data}(…)`, for its text `await ctx.{method}(str(…))`"


def _method() -> str:
    """Return the name of the method of the context that the agent has called.

    The frames of the context's module, and of its methods' decorator, stand together above this
    one; the outermost of the first is the method.
    """
    frame, name = sys._getframe(), ""  # noqa: SLF001 - the one way to it
    above = frame.f_back
    while above is not None:
        module = above.f_globals.get("__name__")
        if name and module not in (_CONTEXT, _DECORATOR):
            break
        name = above.f_code.co_name if module == _CONTEXT else name
        above = above.f_back
    return name


def sendable(make: Callable[[Any], T], value: Any) -> T:
    """Return what is made of a value, whose texts may have halves of characters."""
    try:
        return make(value)
    except UnicodeEncodeError:
        return make(unicode_of(value))


def data_part(data: Any) -> Part:
    """Return a JSON value as a part.

    Raises:
        WrongCallError: it is none; the message names what is not, and spells out the right call.
    """
    try:
        return sendable(partial(new_data_part, media_type="application/json"), data)
    except (ParseError, TypeError, ValueError, OverflowError) as error:
        raise refused_data(data, error) from error


def text_part(text: str) -> Part:
    """Return a text as a part; raise as `own_text`."""
    return Part(text=own_text(text))


def own_text(value: str) -> str:
    """Return a text that the agent has passed to a method of its context, as one to send.

    Raises:
        WrongCallError: as `expect_text`.
    """
    text: str = unicode_of(expect_text(value))
    return text
