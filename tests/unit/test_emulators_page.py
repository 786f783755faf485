"""The tables of docs/maintain/emulators.md are those of `make emulators-table`."""

from __future__ import annotations

import pytest

from tests.emulators.table import (
    TABLES,
    Row,
    batch_size,
    cell,
    expired_item,
    expired_links,
    of_moto,
    retained,
)
from tests.support.pages import DOCS

LINES = (DOCS / "maintain" / "emulators.md").read_text(encoding="utf-8").splitlines()
CELLS = {line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ") for line in LINES}
ROWS = [row for _, rows in TABLES.values() for row in rows]
SLOW = (expired_item, expired_links, batch_size, retained)
"""They wait for an expiry, write 17 MB, or import all of moto's services."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.check.__name__)
def test_the_page_has_each_row(row: Row) -> None:
    """With what AWS documents and what rests on it as the script says; moto does what it says."""
    _, documented, moto, *_, proof = CELLS[row.case]
    assert (documented, proof) == (f"[{row.documented}]({row.page})", row.proof)
    if row.check not in SLOW:
        with of_moto() as client:
            assert cell(row.check, client) == moto
