"""HEADs for tests of what is made of them."""

from dataclasses import fields, replace
from typing import Any

from a2a.types import TaskState

from a2a_serverless.tasks.head import Head, Turn

SMALL = Head(
    scope="scope",
    task_id="a:b.c",
    context_id="context",
    incarnation="incarnation1",
    version=1,
    state=TaskState.TASK_STATE_SUBMITTED,
    status_at=1_700_000_000_001,
    status=b"",
    metadata=b"",
    created_at=1_700_000_000_000,
    expires_at=1_700_000_001_000,
    turn=Turn(number=1, base=1),
)
"""A task as it was just created, with defaults where HEAD has one."""


def with_fields(head: Head, **values: Any) -> Head:
    """Return HEAD with other values of its fields, or of its turn's."""
    names = {field.name for field in fields(Turn)}
    turn = {name: values.pop(name) for name in names & values.keys()}
    return replace(head, turn=replace(head.turn, **turn), **values)
