"""Refusals of wrong arguments to a TaskContext, with the call that would be right."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import PurePath

from a2a.types import Message, Part

from a2a_serverless.worker.failures import WrongCallError

_ENDINGS_WITH_DATA = frozenset({"complete", "complete_json", "respond", "reply_directly"})
_CONTEXT = f"{__name__.rpartition('.')[0]}.context"
_BY_VALUE = "await ctx.emit_artifact(…, file_bytes=…, media_type=…)"


def refused_text(value: object) -> WrongCallError:
    """Return the error for a value that should be a text; call it from within a TaskContext."""
    method = _method()
    return _refused(method, "a text", value, _text_instead(method, value))


def refused_bytes(value: object) -> WrongCallError:
    """Return the error for a `file_bytes` of `emit_artifact` that is not of type bytes."""
    way = "text.encode()" if isinstance(value, str) else "bytes(…)"
    way = "path.read_bytes()" if isinstance(value, PurePath) else way
    return _refused("emit_artifact", "bytes as file_bytes", value, f"write `file_bytes={way}`")


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
        said = f"{where} is a {type(wrong).__name__}: {_json_instead(wrong)}."
    return WrongCallError(f"ctx.{_method()} takes {wanted}, and {said}")


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


def _json_instead(value: object) -> str:
    """Return what to write instead of a value that JSON does not have."""
    if inspect.isawaitable(value):
        return "await it first"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"for a file write `{_BY_VALUE}`, for its text `.decode()`"
    if callable(getattr(value, "model_dump", None)):
        return 'write `….model_dump(mode="json")`'
    if dataclasses.is_dataclass(value):
        return "write `dataclasses.asdict(…)`"
    if isinstance(value, tuple | AbstractSet):
        return "write `list(…)`"
    return "write `str(…)`, or make it of dict, list, str, int, float, bool and None"


def _refused(method: str, wanted: str, value: object, way: str) -> WrongCallError:
    kind = "None" if value is None else f"a {type(value).__name__}"
    return WrongCallError(f"ctx.{method} takes {wanted}, and got {kind}: {way}.")


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

    The frames of the context's module stand together above this one; the outermost is the method.
    """
    frame, name = sys._getframe(), ""  # noqa: SLF001 - the one way to it
    above = frame.f_back
    while above is not None:
        is_context = above.f_globals.get("__name__") == _CONTEXT
        if name and not is_context:
            break
        name = above.f_code.co_name if is_context else name
        above = above.f_back
    return name
