"""docs/load.md: what stops a stack first, computed again from the counts of docs/cost.md."""

from __future__ import annotations

import re

import pytest

from a2a_serverless.storage.layout import SHARDS
from a2a_serverless_tools.local.template import find_template
from benchmarks.cost import OWN_S, STREAM_S, THINK_S, document

DOCS = find_template().parent / "docs"
HEADS = ("one task", "---", "|---")


def rows(page: str, title: str) -> dict[str, list[str]]:
    """The rows of a table of a page, by their first cells; the table's first cell is `title`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text[text.index(f"| {title} |") :].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: [cell.strip() for cell in cells] for name, *cells in lines}


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def default(name: str) -> float:
    """The default of a parameter of the template."""
    return float(document()["Parameters"][name]["Default"])


def ceilings() -> dict[str, list[float]]:
    """What each row of the page has to say, by a word of it."""
    table = rows("cost.md", "one task")
    cost = {name: numbers(cells) for name, cells in table.items() if name not in HEADS}
    turns = [0.0, THINK_S, STREAM_S]

    def over(most: float, used: str) -> list[float]:
        return [most / each for each in cost[used]]

    return {
        "WorkerConcurrency": [
            default("WorkerConcurrency") / (turn + OWN_S["worker"]) for turn in turns
        ],
        "environments": over(1000, "seconds of Lambda environments"),
        "ThrottleRate": [default("ThrottleRate")] * 3,
        "API Gateway": over(10_000, "requests to API Gateway"),
        "fresh table": over(4_000, "write units"),
        "table's quota": over(40_000, "write units"),
        "what is due": over(SHARDS * 1000, "- of them in the index of what is due"),
        "caller's list": over(SHARDS * 1000, "- of them in the index of the caller's tasks"),
    }


@pytest.mark.parametrize(("word", "expected"), ceilings().items())
def test_the_ceilings_follow_from_the_counts(word: str, expected: list[float]) -> None:
    """Each number of the page is a quota or a default, divided by what one task uses."""
    told = [
        cells for name, cells in rows("load.md", "tasks a second until").items() if word in name
    ]
    assert len(told) == 1
    assert numbers(told[0]) == [pytest.approx(each, rel=0.04) for each in expected]


def test_the_months_follow_from_the_prices() -> None:
    """An example's month is its tasks at the price of a million in docs/cost.md."""
    prices = rows("cost.md", "a million tasks, in dollars")["**all**"]
    text = (DOCS / "cost.md").read_text(encoding="utf-8")
    shared = re.search(
        r"N=25.*?\n.*?\| \*\*all\*\* \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| ([\d.]+)", text, re.DOTALL
    )
    assert shared is not None
    month = 30 * 86_400 / 1_000_000
    each = [float(prices[1]), float(shared[1]), 10 * float(shared[1]), 100 * float(shared[2])]
    told = [cells[2] for name, cells in rows("load.md", "a 30 s agent").items() if "second" in name]
    assert numbers(told) == [pytest.approx(month * one, rel=0.01) for one in each]
