"""What belongs together of a HEAD and commits that were not read in the same moment."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head


def belonging_to(head: Head, records: Sequence[Record], reached: int) -> tuple[Record, ...] | None:
    """The commits that lead up to HEAD; None: some are missing, so read on behind `reached`.

    `records` are complete commits in unbroken order, and `reached` is the version they come to:
    where there are none, the one the read began behind. Commits beyond HEAD were made while the
    read was under way: the next one has them, with a HEAD to match.
    """
    if reached < head.version:
        return None
    return tuple(record for record in records if record.version <= head.version)
