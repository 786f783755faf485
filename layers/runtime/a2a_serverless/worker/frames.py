"""Finds the agent author's own lines in a traceback, a thread or a function."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

_LIBRARIES: Final = (
    *(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[1]}/",
    "/opt/python/",  # Lambda's layers
    "/var/runtime/",
    "/var/lang/",
    "<frozen",
)


def is_library(file: str) -> bool:
    """Return True if a file is Python's, a package's or this runtime's, and not the author's."""
    return file.startswith(_LIBRARIES)


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the author's, from `frame` outwards; None if there is none."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def own_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the author's lines of a traceback, the innermost last; empty if it has none."""
    lines = traceback.extract_tb(error.__traceback__)
    return [line for line in lines if not is_library(line.filename)]


def place_of_error(error: BaseException) -> str:
    """Return `FILE, line N` of the author's innermost line of a traceback; empty without one."""
    lines = own_lines(error)
    return place(lines[-1].filename, lines[-1].lineno) if lines else ""


def where(error: BaseException) -> str:
    """Return ` (FILE, line N)` for an error that knows its `place`, or has a line of the author's.

    Empty for others.
    """
    known = getattr(error, "place", "") or place_of_error(error)
    return f" ({known})" if known else ""


def place_of_function(function: Callable[..., Any]) -> str:
    """Return `FILE, line N` where a function begins; empty if it was not written in a file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else place(code.co_filename, code.co_firstlineno)


def place(file: str, line: int | None) -> str:
    """Return a line of a file as messages name it."""
    return f"{file}, line {line}"
