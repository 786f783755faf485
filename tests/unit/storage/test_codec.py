"""The codec between HEAD and its item."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from a2a_serverless.storage.codec import head_item, head_of
from a2a_serverless.tasks.head import KNOWN, AttemptEnd, CancelMark, Head, Spared
from tests.support.heads import SMALL

FULL = replace(
    SMALL,
    version=999_999_999_999,
    status=bytes(range(256)),
    metadata=b"\x00\xff",
    next_turn=5,
    finished_turn=4,
    token="token",
    attempts=3,
    due_at=1_700_000_500_000,
    sends=2,
    replied=True,
    key_digest="k",
    message_digest="m",
    content_digest="c",
    needs=1,
    generation=7,
    size=1_000_000,
    cancel=CancelMark(at=1_700_000_400_000, by="someone"),
    released=AttemptEnd(token="token", reason="ValueError", correlation_id="0123", at=7, until=9),
    spared=Spared(faults=2, waited=300_000, interruptions=1),
    alone=True,
    left="share",
    left_at=1_700_000_500_000,
)
WOKEN = replace(FULL, left="", woken=True)


@pytest.mark.parametrize(
    "head",
    [
        SMALL,
        FULL,
        WOKEN,
        replace(FULL, left="conversation"),
        replace(FULL, status=None, metadata=None),
        replace(FULL, due_at=None, token=None),
    ]
    + [replace(FULL, state=state) for state in sorted(KNOWN)],
)
def test_head_comes_back_as_it_was(head: Head) -> None:
    """A HEAD read from its item is the HEAD that was written."""
    assert head_of(head_item(head)) == head


def test_no_field_of_head_is_forgotten() -> None:
    """Every field of HEAD has a value here that its item must carry."""
    names = {f.name for f in fields(Head)}
    fixed = {
        name
        for name in names
        if getattr(SMALL, name) == getattr(FULL, name) == getattr(WOKEN, name)
    }
    assert fixed == {
        "scope",
        "task_id",
        "context_id",
        "incarnation",
        "state",
        "status_at",
        "created_at",
        "expires_at",
        "turn",
        "turn_base",
    }


def test_a_task_without_due_time_is_not_in_the_due_index() -> None:
    """The due index is sparse: both keys are there, or none."""
    assert {"due_key", "due_at"} <= head_item(FULL).keys()
    assert not {"due_key", "due_at"} & head_item(SMALL).keys()
