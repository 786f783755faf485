"""Context variables that travel with a message, from the API's process to the agent's.

The API reads their values when it accepts a message. They are stored with the turn that the message
opens. Every attempt of that turn sets them around the agent, in the process in which it runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError

MAX_BYTES: Final = 4096
"""The most bytes of one message's names and values together, as JSON."""

_SETTING = "A2A_CONTEXT_VARIABLES"
_UNSET = object()


class PropagatedVariables:
    """The context variables of a deployment, by the names under which both processes import them.

    Args:
        variables: this process's objects by `MODULE:NAME`; another process has its own.
    """

    def __init__(self, variables: Mapping[str, ContextVar[Any]]) -> None:
        self._variables = dict(variables)

    def capture(self) -> str:
        """Return the values in this context as one JSON object; empty when no variable has one.

        A variable that is not set in this context is left out: its default is the same in the
        agent's process.

        Raises:
            ConfigurationError: a value cannot be expressed in JSON, or all of them have more than
                `MAX_BYTES`. The deployment's code is at fault, not the client; the message names
                the variable.
        """
        values = {name: variable.get(_UNSET) for name, variable in self._variables.items()}
        values = {name: value for name, value in values.items() if value is not _UNSET}
        if not values:
            return ""
        for name, value in values.items():
            _check_json(name, value)
        captured = json.dumps(values, separators=(",", ":"))
        if len(captured) > MAX_BYTES:
            msg = (
                f"The values of {', '.join(values)} have {len(captured)} bytes as JSON; "
                f"a message carries {MAX_BYTES} at most."
            )
            raise ConfigurationError(msg)
        return captured

    def restore(self, captured: str) -> None:
        """Set the values that `capture` has returned in this context; ignore unknown names."""
        values: dict[str, Any] = json.loads(captured) if captured else {}
        for name in values.keys() & self._variables.keys():
            self._variables[name].set(values[name])


def propagated_variables(names: str) -> PropagatedVariables | None:
    """Import the context variables of a list like `tracing:REQUEST_ID, shop.users:LOCALE`.

    Return None if the list is empty.

    Raises:
        ConfigurationError: a name has another form, cannot be imported, or is no ContextVar; one
            sentence names it and the reason.
    """
    variables = {name: _imported(name) for name in _given(names)}
    return PropagatedVariables(variables) if variables else None


def _given(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _imported(name: str) -> ContextVar[Any]:
    path, separator, attribute = name.partition(":")
    if not (separator and attribute.isidentifier() and all(map(str.isidentifier, path.split(".")))):
        raise _unusable(name, "does not have the form MODULE:NAME")
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        # A module of the deployment may raise anything: the start stops with the reason.
        reason = " ".join(str(error).split()).rstrip(".")
        raise _unusable(name, f"cannot be imported: {type(error).__name__}: {reason}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, ContextVar):
        raise _unusable(name, "is no ContextVar" if found is not None else "does not exist")
    if (twin := _twin(module)) is not None:
        # Two imports of a file make two variables: the agent would read the other one.
        raise _unusable(name, f"is in a file that is loaded as {twin} too: move it elsewhere")
    return found


def _twin(module: ModuleType) -> str | None:
    """Return another name under which the module's file is loaded; None if there is none."""
    file = module.__dict__.get("__file__")
    for name, other in tuple(sys.modules.items()):
        # Not `other.__file__`: some objects in `sys.modules` import when an attribute is read.
        has_same_file = getattr(other, "__dict__", {}).get("__file__") == file
        if file is not None and has_same_file and other is not module:
            return name
    return None


def _unusable(name: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{_SETTING}: {name!r} {what}.")


def _check_json(name: str, value: Any) -> None:
    try:
        is_changed = json.loads(json.dumps(value, allow_nan=False)) != value
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"The value of {name} is no JSON: {error}.") from error
    if is_changed:
        msg = f"The value of {name} is no JSON: a {type(value).__name__} would arrive changed."
        raise ConfigurationError(msg)
