"""A request, a step, and what models have used, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from a2a.types import Message

from a2a_serverless.tasks.entries import Entry, StepId, TurnOpened
from a2a_serverless.tasks.questions import question_texts
from a2a_serverless.tasks.usage import MILLION, Used, total

MOST_OF_A_LINE: Final = 200
"""Characters of a request that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """Who has asked for a task, and the first line of what was asked."""

    caller: str = ""
    """Empty: it is not known, or there was no authentication."""
    tenant: str = ""
    line: str = ""
    """Empty: the request has no text, or it cannot be read."""

    @property
    def by(self) -> str:
        """Return the caller, with the tenant if there is one; empty as `caller`."""
        return f"{self.caller} ({self.tenant})" if self.caller and self.tenant else self.caller


UNKNOWN: Final = TaskRequest()


def asked_in(entries: Iterable[Entry]) -> TaskRequest:
    """Return what the first message among the entries of a log says."""
    opened = next((entry for entry in entries if isinstance(entry, TurnOpened)), None)
    if opened is None:
        return UNKNOWN
    line = first_line(opened.request.message)
    return TaskRequest(caller=opened.caller.user, tenant=opened.caller.tenant, line=line)


def first_line(message: Message) -> str:
    """Return the first line of a message's texts, cut where it is long; empty: it has none."""
    return _first(part.text for part in message.parts if part.HasField("text"))[:MOST_OF_A_LINE]


def question_line(message: Message) -> str:
    """Return the first line of a status's message; of several questions that of each."""
    lines = [_first([text]) for text in question_texts(message.parts).values()]
    return " ".join(lines)[:MOST_OF_A_LINE] or first_line(message)


def _first(texts: Iterable[str]) -> str:
    lines = (line.strip() for text in texts for line in text.splitlines())
    return next(filter(None, lines), "")


def step_text(step: StepId) -> str:
    """Return a step's name, with its key, and its number if it is not the first of both."""
    key, number = f" [{step.key}]" if step.key else "", f" {step.number}" if step.number > 1 else ""
    return step.name + key + number


def usage_text(used: Used) -> str:
    """Return what models have used, in a line: calls, tokens, and money if it is known."""
    one = total(used)
    calls = "1 call" if one.calls == 1 else f"{one.calls:,} calls"
    cached = f" ({one.cached_tokens:,} cached)" if one.cached_tokens else ""
    text = f"{calls}, {one.input_tokens:,} tokens in{cached}, {one.output_tokens:,} out"
    text += f", cost {one.cost / MILLION:,.4f}" if one.cost else ""
    return text + (f", {one.unpriced:,} without a price" if one.unpriced else "")
