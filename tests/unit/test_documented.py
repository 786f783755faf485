"""The commands of Deploy and Operate: each is run by `make cloud`, or left out with a reason."""

from __future__ import annotations

import re

import pytest

from tests.cloud.documented import PARTS, scripts
from tests.support import commands, pages

EVERY = [
    command for part in PARTS for block in commands.blocks(pages.part(part)) for command in block
]


@pytest.mark.parametrize("text", commands.left_out())
def test_what_is_left_out_is_documented(text: str) -> None:
    """A row of the table without a command leaves out a later one unseen."""
    assert [command for command in EVERY if text in command]


def test_what_is_run_has_values() -> None:
    """No command that is run has a name or dots in the place of a value."""
    names = ("SCOPE", "MESSAGE", "NAME", "REGION", "ACCOUNT")
    run = [it for _, found in scripts(**dict.fromkeys(names, "value")) for it in found]
    assert len(run) > 30
    placeholder = re.compile(r"…|[ =](?!ID\b|AWSPREVIOUS)[A-Z]{3,}(?![\w=])(?!.*#)")
    assert [it for it in run if placeholder.search(it.partition("  #")[0])] == []
