"""The tables of docs/maintain/emulators.md are those of `make emulators-table`."""

from __future__ import annotations

import pytest

from tests.emulators.table import (
    TABLES,
    batch_size,
    cell,
    expired_item,
    expired_links,
    of_moto,
    retained,
    rows,
)

CHECKS = {case: check for _, checks in TABLES.values() for case, check in checks.items()}
SLOW = (expired_item, expired_links, batch_size, retained)
"""They wait for an expiry, write 17 MB, or import all of moto's services."""


def test_each_row_of_the_page_is_run() -> None:
    """A row without a check would be printed as it was, whatever the emulators do."""
    assert rows().keys() == CHECKS.keys()


@pytest.mark.parametrize("case", [case for case, check in CHECKS.items() if check not in SLOW])
def test_moto_does_what_the_page_says(case: str) -> None:
    """Each cell of moto is what the check finds there."""
    with of_moto() as client:
        assert cell(CHECKS[case], client) == rows()[case][1]
