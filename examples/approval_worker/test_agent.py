"""Tests of the buyer: approved, declined, no decision, kills behind each record."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

from a2a_serverless_tools.testing import AgentBench, step
from a2a_serverless_tools.testing.fixtures import MakeBench

AGENT = str(Path(__file__).with_name("agent.py"))
BUYER = run_path(AGENT)["Buyer"]
OFFER = "12 chairs for 1,200 EUR"
ORDERED = f"Ordered as PO-23: {OFFER}."


@pytest.fixture
def mails() -> list[str]:
    """Make a list of the texts that were mailed."""
    return []


@pytest.fixture
def bench(agent_bench: MakeBench, mails: list[str]) -> AgentBench:
    """Make the bench of a buyer whose mails are kept in the list."""
    return agent_bench(BUYER(lambda *mail: mails.append(mail[2])))


def decide(bench: AgentBench, decision: str) -> None:
    """Click a link of the mail, and the page's button."""
    bench.signal("approval", {"decision": decision}, form=True)


def test_it_orders_what_is_approved(bench: AgentBench, mails: list[str]) -> None:
    """The mail has a link for each decision, both of one address."""
    decide(bench, "approve")
    run = bench.send("12 chairs")
    assert (run.state, run.artifacts["final-answer"].text) == ("completed", ORDERED)
    (text,) = mails
    approve, decline = (line.partition(": ")[2] for line in text.splitlines()[2:])
    assert approve.startswith("https://agent.example/callbacks/")
    assert decline == approve.replace("=approve", "=decline")


def test_without_an_approval_it_orders_nothing(agent_bench: MakeBench, mails: list[str]) -> None:
    """It was declined, three days have passed, or somebody has posted anything."""
    buyer = BUYER(lambda *mail: mails.append(mail[2]))
    for posted, state, text in (
        ({"decision": "decline"}, "rejected", f"Declined: {OFFER}. Nothing was ordered."),
        (None, "failed", "Nobody has decided within 3 days: nothing was ordered."),
        ("yes, please", "failed", "What was posted does not fit: "),
    ):
        bench = agent_bench(buyer)
        if posted is not None:
            bench.signal("approval", posted)
        run = bench.send("12 chairs")
        assert (run.state, run.text.startswith(text)) == (state, True)
        assert (run.steps.count("mail"), run.steps.count("order")) == (1, 0)


@pytest.mark.parametrize("record", ["offer", "mail", "ctx.callback approval", "order"])
def test_a_kill_mails_and_orders_once(bench: AgentBench, mails: list[str], record: str) -> None:
    """Killed behind each record, another process goes on with what there is."""
    decide(bench, "approve")
    run = bench.send("12 chairs", kill_after=step(record))
    assert run.artifacts["final-answer"].text == ORDERED
    assert len(mails) == 1
    assert [run.steps.count(name) for name in ("offer", "mail", "order")] == [1, 1, 1]


def test_a_sender_chooses_ses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MAIL_FROM it mails, wherever the worker runs; else it prints."""
    monkeypatch.delenv("MAIL_FROM", raising=False)
    assert run_path(AGENT)["agent"].mail.__name__ == "printed"
    monkeypatch.setenv("MAIL_FROM", "agent@example.com")
    assert run_path(AGENT)["agent"].mail.__name__ == "by_ses"
