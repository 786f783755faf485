"""What tests need beside Python, and what its absence means."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

VARIABLE = "A2A_REQUIRE_EMULATORS"


def report_not_run(reason: str) -> NoReturn:
    """Report the test as not run; as failed where the variable is 1, as in the whole run of CI."""
    if os.environ.get(VARIABLE) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
