"""The page `load`: what stops a stack first, computed again from the counts of the page `cost`."""

from __future__ import annotations

import re

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import SHARDS
from benchmarks.cost import OWN_S, STREAM_S, THINK_S, document
from tests.support import pages
from tests.support.template import Template, refused

GIVEN = re.compile(r"`(\w+)` ([\w,]+)")
HEADS = ("one task", "---", "|---")


def rows(title: str, page: str = "*") -> dict[str, list[str]]:
    """The rows of the one table whose first cell is `title`, by their first cells."""
    table = pages.table(title, page)
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: [cell.strip() for cell in cells] for name, *cells in lines}


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def default(name: str) -> float:
    """The default of a parameter of the template, or of a setting."""
    if field := Settings.model_fields.get(name.removeprefix("A2A_").lower()):
        return float(field.default)
    return float(document()["Parameters"][name]["Default"])


def busiest(cost: dict[str, list[float]]) -> list[float]:
    """The requests of a task to the method that gets most: its send, or all others, which look."""
    return [max(1.0, each - 1) for each in cost["requests to API Gateway"]]


def ceilings() -> dict[str, list[float]]:
    """What each row of the page has to say, by a word of it."""
    table = rows("one task")
    cost = {name: numbers(cells) for name, cells in table.items() if name not in HEADS}
    turns = [0.0, THINK_S, STREAM_S]

    def over(most: float, used: str) -> list[float]:
        return [most / each for each in cost[used]]

    return {
        "WorkerConcurrency": [
            default("WorkerConcurrency") / (turn + OWN_S["worker"]) for turn in turns
        ],
        "environments": over(1000, "seconds of Lambda environments"),
        "ThrottleRate": [default("ThrottleRate") / each for each in busiest(cost)],
        "API Gateway": over(10_000, "requests to API Gateway"),
        "fresh table": over(4_000, "write units"),
        "table's quota": over(40_000, "write units"),
        "what is due": over(SHARDS * 1000, "- of them in the index of what is due"),
        "SQS's quota": [120_000 / (turn + OWN_S["worker"]) for turn in turns],
        "caller's list": over(SHARDS * 1000, "- of them in the index of the caller's tasks"),
    }


@pytest.mark.parametrize(("word", "expected"), ceilings().items())
def test_the_ceilings_follow_from_the_counts(word: str, expected: list[float]) -> None:
    """Each number of the page is a quota or a default, divided by what one task uses."""
    told = [cells for name, cells in rows("tasks a second until").items() if word in name]
    assert len(told) == 1
    assert numbers(told[0]) == [pytest.approx(each, rel=0.04) for each in expected]


@pytest.mark.parametrize("name", ["A2A_STREAMS_IN_ALL", "A2A_STREAMS_PER_CALLER"])
def test_the_streams_follow_from_their_limits(name: str) -> None:
    """A limit of streams is that many tasks over the time of one stream; others open none."""
    (told,) = [it for word, it in rows("tasks a second until").items() if name in word]
    assert told[:2] == ["-", "-"]
    assert float(told[2]) == default(name) / STREAM_S


def test_the_webhooks_follow_from_their_places() -> None:
    """A place is taken for a call's own time and the receiver's; one caller has a fifth of them."""
    text = pages.text("load")
    a_second = default("PushConcurrency") / (OWN_S["push"] + 0.2)
    assert (
        f"are notified {a_second:g} times a second, one caller's receivers {a_second / 5:g}" in text
    )


def setting(text: str, name: str) -> float:
    """The value of a parameter in an example's settings, else its default."""
    given = re.search(rf"`{name}` ([\d,]+)", text)
    return float(given[1].replace(",", "")) if given else default(name)


@pytest.mark.long
def test_the_settings_of_an_example_carry_it() -> None:
    """Workers, requests to a method and write units of a fresh table suffice for each example."""
    table = rows("one task")
    cost = {name: numbers(cells) for name, cells in table.items() if name not in HEADS}
    looks, units = busiest(cost)[1], cost["write units"][1]
    examples = rows("a 30 s agent")
    settings = [(name, cells[0], cells[1]) for name, cells in examples.items() if "second" in name]
    assert len(settings) == 4
    for name, turns, text in settings:
        rate = float(name.split()[0])
        given = {it[1]: it[2].replace(",", "") for it in GIVEN.finditer(text)}
        known = {it: value for it, value in given.items() if it in document()["Parameters"]}
        assert refused(document(), known) == Template(parameters=known).broken_rules() == []
        assert float(turns.replace(",", "")) == rate * THINK_S
        assert setting(text, "ThrottleRate") >= rate * looks
        assert max(4000, setting(text, "WarmWriteUnits")) >= 1.2 * rate * units
        if workers := re.search(r"(\d+) workers of `fargate.yaml`", text):
            assert float(workers[1]) * 64 * 0.7 >= rate * THINK_S
            assert setting(text, "MostWorkers") >= float(workers[1])
        else:
            places = setting(text, "WorkerConcurrency") * setting(text, "WorkerTurns")
            assert places >= rate * THINK_S


def test_the_months_follow_from_the_prices() -> None:
    """An example's month is its tasks at the price of a million in the page `cost`."""
    prices = rows("a million tasks, in dollars", "cost")["**all**"]
    text = pages.text("cost-of-waiting")
    shared = re.search(
        r"N=25.*?\n.*?\| \*\*all\*\* \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| ([\d.]+)", text, re.DOTALL
    )
    assert shared is not None
    month = 30 * 86_400 / 1_000_000
    each = [float(prices[1]), float(shared[1]), 10 * float(shared[1]), 100 * float(shared[2])]
    told = [cells[2] for name, cells in rows("a 30 s agent").items() if "second" in name]
    assert numbers(told) == [pytest.approx(month * one, rel=0.01) for one in each]
