"""What template.yaml says of PushFunction's source, the table's stream, and its filter.

The filter is that of
https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html. It knows the rules that
template.yaml uses; any other rule is an error, its meaning is not guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from a2a_serverless.settings import Settings
from tests.support.template import read

TIMEOUT_S = 60.0
"""The timeout of PushFunction in template.yaml."""


def stream_filter(settings: Settings) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether the function gets a record, for the events that these settings push."""
    chosen = _DOCUMENT["Mappings"]["PushFilters"][settings.push_events]["Pattern"]
    patterns = [json.loads(pattern) for pattern in (chosen, WEBHOOKS_SET)]
    return lambda record: any(_matches(pattern, record) for pattern in patterns)


_DOCUMENT = read()
_COMMITS = _DOCUMENT["Resources"]["PushFunction"]["Properties"]["Events"]["Commits"]["Properties"]
WEBHOOKS_SET: str = _COMMITS["FilterCriteria"]["Filters"][1]["Pattern"]
"""The filter of webhooks that were set."""


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
        case str():
            return bool(value == rule)
    raise NotImplementedError(rule)
