"""A step, and what models have used, in words. Pure."""

from __future__ import annotations

from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.usage import MILLION, Used, total


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
