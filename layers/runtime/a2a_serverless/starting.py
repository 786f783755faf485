"""The cold start of a function.

This module imports next to nothing, so that `cold_start` speeds up nearly all that is imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_FUNCTION: Final = "AWS_LAMBDA_FUNCTION_NAME"
_SDK_SPANS: Final = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"

_NO_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"
"""Pydantic's own variable. Without it, the first model searches all that is installed."""

_UNUSED: Final = ("click", "opentelemetry", "starlette")
"""Packages that the A2A SDK and httpx import if they are there, and of which nothing is used here:
a command line, spans of the SDK's own, a type of an annotation."""


class _Later(ModuleType):
    """Stands for httpx until more of it is used than its client's name, which an annotation has.

    The SDK calls webhooks with httpx; this project calls them without it.
    """

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name == "AsyncClient":
                return Any
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def cold_start(sdk: str = "") -> Iterator[None]:
    """Observe the process, and speed up the imports in the block by a tenth.

    `sdk` names a package of the A2A SDK. It is imported before the block, while packages that it
    can do without are hidden. An agent's own imports find them. So do its models the plugins of
    pydantic; the SDK's and those of the settings are made before it as well, without any.
    """
    # The A2A SDK reads it as it is imported: its own spans tell nothing of a task.
    os.environ.setdefault(_SDK_SPANS, "false")
    with without_collections():
        with _without_plugins():
            if sdk:
                _import_alone(sdk)
            importlib.import_module("a2a_serverless.observability").start()
            importlib.import_module("a2a_serverless.settings")
        yield


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch the garbage collector off during the block, which has imports.

    They leave next to no garbage, but it would search through all objects that they make. In a
    function, later collections also leave out these objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _FUNCTION in os.environ:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Make models of pydantic in the block without plugins, if the user has not chosen some."""
    if _NO_PLUGINS in os.environ:
        yield
        return
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[_NO_PLUGINS]


def _import_alone(name: str) -> None:
    """Import a package of the SDK with `_UNUSED` hidden and httpx put off, and show them again."""
    modules: dict[str, Any] = sys.modules
    has_spans = os.environ[_SDK_SPANS].lower() == "true"
    # For an import, None is a module that does not exist.
    instead = {**dict.fromkeys(_UNUSED), "httpx": _Later("httpx")}
    kept = modules.keys() | ({"opentelemetry"} if has_spans else set())
    hidden = {each: instead[each] for each in instead.keys() - kept}
    modules |= hidden
    try:
        importlib.import_module(name)
    finally:
        for each, put in hidden.items():
            if modules.get(each) is put:
                del modules[each]
