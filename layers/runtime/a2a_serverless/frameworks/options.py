"""What an adapter passes on to its framework: options, under the framework's own names.

An option is refused when the adapter is made, if the framework's function does not take it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker import TaskContext


class Passed:
    """The options that an adapter passes on.

    Args:
        adapter: the adapter's class.
        functions: those of the framework that take them, each with the names of what the adapter
            itself gives it.
        as_they_are: options whose value the framework takes as a function.
    """

    def __init__(
        self,
        adapter: str,
        functions: Mapping[Callable[..., Any], frozenset[str]],
        as_they_are: frozenset[str] = frozenset(),
    ) -> None:
        self.adapter = adapter
        self.own = frozenset[str]().union(*functions.values())
        self._as_they_are = as_they_are
        self.parameters = frozenset(name for each in functions for name in _parameters(each))
        self._names = {
            function: [name for name in _parameters(function) if name not in self.own]
            for function in functions
        }

    @property
    def names(self) -> list[str]:
        """Return the names of all options."""
        return [name for names in self._names.values() for name in names]

    def check(self, given: Mapping[str, Any]) -> None:
        """Check that all options exist.

        Raises:
            ConfigurationError: one does not, or is the adapter's to give.
        """
        for name in (name for name in given if name not in self.names):
            is_own = name in self.own
            what = f"gives {name!r} itself" if is_own else f"has no option {name!r}"
            takes = ", ".join(self.names)
            raise ConfigurationError(f"{self.adapter} {what}: it passes on {takes}.")

    async def of(
        self, ctx: TaskContext, given: Mapping[str, Any], function: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """Return the options of one turn, those of `function` alone if there are several.

        A value that is a function is called with the turn's context. A dict is copied, as the
        framework may write into it.
        """
        names = self.names if function is None else self._names[function]
        made = {}
        for name, value in ((name, given[name]) for name in names if name in given):
            if name not in self._as_they_are and _is_function(value):
                value = value(ctx)  # noqa: PLW2901 - the same option
                value = await value if inspect.isawaitable(value) else value  # noqa: PLW2901
            made[name] = dict(value) if type(value) is dict else value
        return made


def _parameters(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind in kinds and each.name != "self"]


def _is_function(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, partial)
