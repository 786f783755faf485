"""The lease of a claimed turn, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

from a2a_serverless.storage.codec import head_item, noted, unless_canceled
from a2a_serverless.storage.table import holds
from a2a_serverless.tasks.attempts import lease_end
from a2a_serverless.tasks.rules import Timing
from tests.unit.tasks.heads import asked, claimed

TIMING = Timing(lease_s=300, renew_before_s=120)
CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """A lease ends, in milliseconds, as long after the claim as the timing says."""
    assert lease_end(5_000, TIMING) == 305_000


def test_only_the_owner_renews() -> None:
    """A finished turn has no token, another attempt another one, a later task another mark."""
    item = head_item(CLAIMED)
    by_owner = noted(CLAIMED, "A", {"due_at": 1}).when
    assert holds(item, by_owner)
    assert not holds(item, noted(CLAIMED, "B", {"due_at": 1}).when)
    assert not holds(head_item(replace(CLAIMED, incarnation="later")), by_owner)
    assert not holds(head_item(replace(CLAIMED, token=None)), by_owner)
    assert not holds(None, by_owner)


def test_no_renewal_moves_the_deadline_of_a_cancel() -> None:
    """What moves the due time is refused once a cancel was requested; what does not is stored."""
    renewal = noted(CLAIMED, "A", {"due_at": 1})
    for head, is_stored in ((CLAIMED, True), (asked(CLAIMED), False)):
        assert holds(head_item(head), unless_canceled(renewal).when) is is_stored
        assert holds(head_item(head), renewal.when)
