"""The filter of an event source, as Lambda evaluates it over a stream's records.

https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html. It knows the
rules that template.yaml uses; any other one is an error and never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from a2a_serverless.local.template import TemplateError


class StreamFilter:
    """Patterns of which a record has to match one.

    Args:
        patterns: JSON texts; without any, every record passes.

    Raises:
        TemplateError: a pattern is not JSON, or has a rule that is not known here.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [_parsed(pattern) for pattern in patterns]

    def passes(self, record: Mapping[str, Any]) -> bool:
        """Return True if the function gets the record."""
        return not self._patterns or any(_matches(p, record) for p in self._patterns)


def _parsed(pattern: str) -> dict[str, Any]:
    try:
        parsed = json.loads(pattern)
    except ValueError as error:
        raise TemplateError(f"template.yaml: the filter {pattern} is not JSON.") from error
    if not isinstance(parsed, dict):
        raise TemplateError(f"template.yaml: the filter {pattern} is not an object.")
    _check(parsed)
    return parsed


def _check(pattern: Mapping[str, Any]) -> None:
    for value in pattern.values():
        if isinstance(value, dict):
            _check(value)
            continue
        rules = value if isinstance(value, list) else [value]
        if not isinstance(value, list) or not all(map(_is_known, rules)):
            raise TemplateError(f"template.yaml: {json.dumps(value)} is no filter rule known here.")


def _is_known(rule: Any) -> bool:
    return isinstance(rule, str) or (
        isinstance(rule, dict) and len(rule) == 1 and rule.keys() <= {"prefix", "exists"}
    )


def _matches(pattern: Mapping[str, Any], value: Any) -> bool:
    """Return True if every name of the pattern matches, a leaf by one of its rules."""
    fields = value if isinstance(value, dict) else {}
    return all(
        _matches(below, fields.get(name))
        if isinstance(below, dict)
        else any(_applies(rule, fields.get(name)) for rule in below)
        for name, below in pattern.items()
    )


def _applies(rule: str | dict[str, Any], value: Any) -> bool:
    match rule:
        case {"prefix": prefix}:
            return isinstance(value, str) and value.startswith(prefix)
        case {"exists": wanted}:
            return (value is not None) is wanted
        case _:
            return bool(value == rule)
