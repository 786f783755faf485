"""What an agent waits for beside its client: what it looks for itself, and what comes from outside.

A wait is a step whose result is not there yet. One of a minute or more holds no process.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from contextlib import suppress
from dataclasses import field
from typing import Any, Final
from urllib.parse import parse_qs

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from a2a_serverless.tasks.waits import CALL, FORM, POLL, Signal
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import WrongCallError, is_seconds
from a2a_serverless.worker.questions import WrongAnswerError, misfit_of
from a2a_serverless.worker.steps import Retry, current_step, outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What was posted to the address of a callback.

    >>> callback = await ctx.callback("paid")
    >>> posted = await callback.wait()
    >>> await ctx.complete(f"Paid: {posted.text}")
    """

    data: Any
    """What is of `schema`; without one the value of JSON, or the fields of a form as a dict of
    texts, of lists for those that come more than once. None: it is neither."""
    text: str
    """The body as text, without a byte-order mark."""
    body: bytes = field(repr=False)
    media_type: str
    by: str
    """The operator who has sent it; empty: who knows the address."""

    @classmethod
    def of(cls, signal: Signal, of_schema: TypeAdapter[Any] | None) -> Posted:
        """Return what a signal brings.

        Raises:
            WrongAnswerError: it is not of the type of the schema.
        """
        body, kind = signal.body.removeprefix(BOM_UTF8), signal.media_type.partition(";")[0]
        text = body.decode(errors="replace")
        data: Any = None
        with suppress(ValueError):
            if kind.strip().lower() == FORM:
                fields = parse_qs(text, keep_blank_values=True)
                data = {name: each if each[1:] else each[0] for name, each in fields.items()}
            else:
                data = from_json(body)
        if of_schema is not None:
            try:
                data = of_schema.validate_python(data)
            except ValidationError as error:
                why = f"What was posted does not fit: {misfit_of(error)}."
                # Its words may be the sender's, and are for the client alone.
                raise WrongAnswerError(
                    "What was posted to a callback does not fit its schema.", client_text=why
                ) from error
        return cls(
            data=data, text=text, body=signal.body, media_type=signal.media_type, by=signal.by
        )


class NotYetError(Exception):
    """A look has found nothing; the next one comes after `after_s` seconds, or later."""

    def __init__(self, after_s: float = 0.0) -> None:
        super().__init__("There is nothing yet.")
        self.after_s = after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks(Retry):
    """The waits between the looks of a poll: they grow by half each, from `base_s` to `cap_s`."""

    def wait_s(self, tried: int, error: BaseException) -> float | None:
        """Return the seconds until the next look after `tried` of them; None: it is the last."""
        if not isinstance(error, NotYetError):
            return None
        return max(error.after_s, min(self.cap_s, self.base_s * 1.5 ** min(tried - 1, 32)))


_IN_NODE: Final = {
    "ctx.ask": "ask by LangGraph's own `interrupt(…)`.",
    CALL: "call it in a task of LangGraph's, `@task`, or before the graph.",
}
"""The ways out of a graph's node."""


def refuse_place(call: str, *, is_home: bool = True) -> None:
    """Raise WrongCallError if a wait that may be long is called where none can be.

    That is a step, a node of a graph and, unless `is_home`, a thread. Another agent may be called
    in a step, but not in a look of a poll.
    """
    step, way = current_step(), f"wait behind it, `await {call}(…)` in the agent's own code."
    again = f"that would run again with the result. Let it return what it has found, and {way}"
    if step is not None and call != CALL:
        where, way = "a step", again
    elif step is not None and step.id.name.startswith(POLL):
        where = "a look of ctx.poll"
        way = "each look would get the first one's answer. Call it in a loop with `ctx.sleep`."
    elif outside.get() is not None:
        where, way = "a node of a graph, which is a step", _IN_NODE.get(call, again)
    elif not is_home:
        where = "a thread"
        way = f"that cannot wait so long. Return from the function of ctx.run_sync, and {way}"
    else:
        return
    raise WrongCallError(f"{call} is called within {where}: {way}")


def seconds_in(call: str, **seconds: Any) -> None:
    """Raise WrongCallError unless all are seconds from 0 on."""
    for name, given in seconds.items():
        if not is_seconds(given):
            raise WrongCallError(
                f"{call} takes as `{name}` seconds, a number from 0 on, and got {given!r}."
            )
