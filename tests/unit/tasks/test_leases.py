"""The lease of a claimed turn, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

from a2a_serverless.storage.codec import head_item
from a2a_serverless.storage.durable import owned_by
from a2a_serverless.storage.table import holds
from a2a_serverless.tasks.attempts import lease_end
from a2a_serverless.tasks.rules import Timing
from tests.unit.tasks.heads import claimed

TIMING = Timing(lease_s=300, renew_before_s=120)
CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """A lease ends, in milliseconds, as long after the claim as the timing says."""
    assert lease_end(5_000, TIMING) == 305_000


def test_only_the_owner_renews() -> None:
    """A finished turn has no token, another attempt another one, a later task another mark."""
    mark, item = CLAIMED.incarnation, head_item(CLAIMED)
    assert holds(item, owned_by(mark, "A"))
    assert not holds(item, owned_by(mark, "B"))
    assert not holds(item, owned_by("later", "A"))
    assert not holds(head_item(replace(CLAIMED, token=None)), owned_by(mark, "A"))
    assert not holds(None, owned_by(mark, "A"))
