"""The comparison with the peers: what its table shows."""

from __future__ import annotations

import datetime as dt

from benchmarks.peers import __main__ as peers
from benchmarks.peers import scenarios, table
from benchmarks.peers.scenarios import Figures

TODAY = dt.date(2026, 11, 22)


def test_a_ratio_is_of_figures_of_one_round() -> None:
    """A slow round, in which both took longer, does not change a ratio."""
    own, peer = "a2a-serverless, serve", "SDK, SQLite"
    rounds = [{own: Figures(), peer: Figures()} for _ in range(3)]
    for round_, (mine, other) in zip(rounds, ((5.0, 10.0), (50.0, 100.0), (6.0, 8.0)), strict=True):
        round_[own].values["echo"] += [mine]
        round_[peer].values["echo"] += [other]
    text = table.tables(rounds, {}, {own: "1.0", peer: "1.3"}, "make", TODAY)
    assert "| blocking echo, ms, p50 | 0.50 | 1.00 |" in text
    page = table.summary(rounds, {own: "1.0", peer: "1.3"}, "make", TODAY)
    assert f"| {own} | 6 (0.50) | - |" in page


def test_each_row_is_of_a_scenario() -> None:
    """A row with a misspelt scenario would keep its values when that scenario fails."""
    assert set(table.ROWS) == set(scenarios.SCENARIOS)
    assert callable(peers.compare)
