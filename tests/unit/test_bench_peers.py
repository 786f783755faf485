"""The comparison with the peers: what its table shows."""

from __future__ import annotations

import datetime as dt

from benchmarks.peers import __main__ as peers
from benchmarks.peers import scenarios, table
from benchmarks.peers.scenarios import Figures


def test_the_table_has_the_median_of_the_rounds() -> None:
    """A row has the median of the rounds' percentiles; a system that failed has the reason."""
    rounds = [{"a": Figures()} for _ in range(3)]
    for round_, value in zip(rounds, (10.0, 90.0, 20.0), strict=True):
        round_["a"].values["echo"] += [value, value]
    today = dt.date(2026, 11, 22)
    text = table.tables(rounds, {"b": "is away"}, {"a": "1.0", "b": ""}, "make", today)
    assert "| blocking echo, ms, p50 | 20 | - |" in text
    assert "- b: is away" in text


def test_each_row_is_of_a_scenario() -> None:
    """A row with a misspelt scenario would keep its values when that scenario fails."""
    assert set(table.ROWS) == set(scenarios.SCENARIOS)
    assert callable(peers.compare)
