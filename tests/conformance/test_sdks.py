"""The official servers and ours, asked the same."""

import pytest

from tests.conformance import sdks


@pytest.mark.long
def test_the_table_is_as_the_page_has_it() -> None:
    """What the page `official-servers` says of the SDKs' servers and of ours."""
    page = sdks.PAGE.read_text(encoding="utf-8").splitlines()
    assert [row for row in sdks.rows() if row not in page] == []
