"""The lease of a claimed turn, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_serverless.tasks.attempts import lease_end
from a2a_serverless.tasks.head import AttemptEnd, Head, Uncounted
from a2a_serverless.tasks.rules import Timing, releasing
from tests.support.heads import with_fields
from tests.support.present import present
from tests.unit.tasks.heads import asked, claimed

TIMING = Timing(lease_s=300, renew_before_s=120)
CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """A lease ends, in milliseconds, as long after the claim as the timing says."""
    assert lease_end(5_000, TIMING) == 305_000


@pytest.mark.parametrize(
    ("head", "is_given_back"),
    [
        (CLAIMED, True),
        (with_fields(CLAIMED, token="B"), False),
        (with_fields(CLAIMED, released=AttemptEnd(token="A")), False),
        (with_fields(CLAIMED, parked="share"), False),
    ],
    ids=["its own", "of another", "given back", "left"],
)
def test_an_attempt_gives_back_what_it_has(head: Head, *, is_given_back: bool) -> None:
    """Once, and with its share of the workers; the counts are those that it names."""
    end = AttemptEnd(token="A", reason="ValueError")
    after = releasing(
        with_fields(head, has_share=True), end, due_at=7, attempts=3, uncounted=Uncounted(faults=1)
    )
    assert (after is not None) is is_given_back
    if after is not None:
        assert (after.turn.released, after.turn.has_share, after.due_at) == (end, False, 7)
        assert (after.turn.attempts, after.turn.uncounted.faults) == (3, 1)


def test_a_released_turn_keeps_the_deadline_of_a_cancel() -> None:
    """The sweeper ends the task then, whatever the attempt wants."""
    after = present(releasing(asked(CLAIMED), AttemptEnd(token="A"), due_at=7))
    assert after.due_at == asked(CLAIMED).due_at
