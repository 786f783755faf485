"""Fields of log lines as text: which task, turn and attempt a line is about, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

WHICH: Final = (
    *("task_id", "turn", "attempt", "attempts", "config_id", "version", "state"),
    *("message_id", "queue", "group", "tasks"),
)
"""Fields that name what a line is about."""
WHY: Final = ("reason", "error", "method", "event", "sends", "failures", "wait_s", "delay_s")
"""Fields that say why, and for how long."""
LEADS: Final = "correlation_id"
"""The field that leads to the other lines of the same piece of work."""
_SHOWN: Final = {
    "task_id": "task",
    "config_id": "webhook",
    "message_id": "message",
    LEADS: "correlation id",
}
"""Other names that a line has for some fields."""


def named(fields: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield those fields of a line that have a value, each with its name."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, float):
            value = f"{value:.1f}"
        if name == "attempts" and value and (most := fields.get("max_attempts")):
            value = f"{value} of {most}"
        if value is not None and value != "":
            yield f"{_SHOWN.get(name, name)} {value}"
