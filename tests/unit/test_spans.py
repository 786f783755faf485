"""Traces: what travels with and without spans, who decides what is recorded, what spans say."""

from __future__ import annotations

import asyncio
import logging

import pytest

from a2a_serverless.errors import TaskNotFoundError, UnavailableError
from a2a_serverless.observability import spans
from a2a_serverless.observability.spans import (
    _trace_id,
    incoming,
    loaded,
    span,
    stored,
    trace_context,
)
from tests.support.observed import ids_of, links_of, logged, parent_of, recorded

logger = logging.getLogger("a2a_serverless.test")

TRACE, ABOVE = "67891233abcdef012345678912345678", "53995c3f42cd8ad8"
PARENT = f"00-{TRACE}-{ABOVE}-01"


@pytest.mark.parametrize(
    ("parent", "state", "read"),
    [
        (PARENT, "a=b,c=d", {"traceparent": PARENT, "tracestate": "a=b,c=d"}),
        (PARENT, "", {"traceparent": PARENT}),
        (PARENT, "a=b\r\nX-Evil: 1", {"traceparent": PARENT}),
        (PARENT, "t@v=a b, c=d", {"traceparent": PARENT, "tracestate": "t@v=a b, c=d"}),
        (PARENT, "my secret", {"traceparent": PARENT}),
        (PARENT, "a=b,a=c", {"traceparent": PARENT}),
        (PARENT, "A=b", {"traceparent": PARENT}),
        (PARENT, "a=ü", {"traceparent": PARENT}),
        (PARENT, ",".join(f"a{number}=b" for number in range(33)), {"traceparent": PARENT}),
        (PARENT, "a=" + "b" * 65_536, {"traceparent": PARENT}),
        (f"{PARENT},{PARENT}", "a=b", {}),
        ("0" * 65_536, "a=b", {}),
        (f"00-{TRACE[:-1]}٣-{ABOVE}-01", "a=b", {}),
        (f"{PARENT}\r\nX-Evil: 1", "a=b", {}),
        (PARENT.upper(), "a=b", {}),
        (f"00-{'0' * 32}-{ABOVE}-01", "a=b", {}),
        (f"00-{TRACE}-{'0' * 16}-01", "a=b", {}),
        (f"ff-{TRACE}-{ABOVE}-01", "a=b", {}),
        ("", "a=b", {}),
    ],
)
def test_a_clients_trace_is_read_with_care(parent: str, state: str, read: dict[str, str]) -> None:
    """A well-formed trace is kept, and its state with it; anything else is left out, and unsaid."""
    given = {"traceparent": parent, "tracestate": state}
    assert incoming(given) == loaded(f"{parent} {state}") == read
    with logged() as lines, recorded() as seen, span("GET", incoming(given)):
        sent = trace_context()
    assert lines == []
    assert sent.get("tracestate", "").replace(", ", ",") == read.get("tracestate", "").replace(
        ", ", ","
    )
    assert (_trace_id(sent) == TRACE) is bool(read)
    assert len(seen.take()) == 1


def test_without_spans_a_trace_is_only_carried() -> None:
    """What a block sends has the ids that it was given, a block without any gets new ones."""
    fields = {"traceparent": PARENT, "tracestate": "a=b"}
    with logged() as lines, span("attempt", fields) as piece:
        piece.set({"a2a.turn": 1})
        piece.event("claimed")
        piece.fail("ValueError")
        assert trace_context() == fields
        assert loaded(stored()) == fields
        logger.info("inside")
        with span("sweep", {}):
            begun = trace_context()
            logger.info("of its own")
    assert trace_context() == {}
    assert stored() is None
    assert _trace_id(begun) not in ("", TRACE)
    assert [line["trace_id"] for line in lines] == [TRACE, _trace_id(begun)]


def test_spans_are_chained_in_one_process_and_the_next() -> None:
    """A span is a child of the one that caused it, and what it sends carries it on."""
    with recorded() as seen:
        with span("SendMessage", {"traceparent": PARENT, "tracestate": "a=b"}, kind="server"):
            fields = trace_context()
        links = [({"traceparent": PARENT}, "previous attempt")]
        with span("attempt", fields, links=links), span("step"):
            pass
        with span("sweep", {}):
            pass
        sent, attempt, step, sweep = seen.take()
    assert fields["tracestate"] == "a=b"
    assert {ids_of(each)[0] for each in (sent, attempt, step)} == {TRACE}
    chain = [ABOVE, ids_of(sent)[1], ids_of(attempt)[1]]
    assert [parent_of(each) for each in (sent, attempt, step)] == chain
    assert links_of(attempt) == {"previous attempt": ABOVE}
    assert parent_of(sweep) is None
    assert ids_of(sweep)[0] != TRACE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("my secret"), "ValueError"),
        (UnavailableError(), "UnavailableError"),
        (TaskNotFoundError(), None),
        (asyncio.CancelledError(), None),
    ],
)
def test_a_failure_is_marked_by_its_type(error: BaseException, kind: str | None) -> None:
    """Faults are told from refusals, a cancel is neither, and no text gets into a span."""
    with recorded() as seen:
        with pytest.raises(type(error)), span("attempt"):
            raise error
        (found,) = seen.take()
    assert (found.attributes or {}).get("error.type") == kind
    assert found.status.is_ok is (kind is None)
    assert "my secret" not in found.to_json()


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        ("", "", 1),
        ("parentbased_always_off", "", 0),
        ("parentbased_traceidratio", "0.05", 0.05),
        ("parentbased_traceidratio", "no number", 1),
        ("", "0.05", 0.05),
        ("", "7", 1),
    ],
)
def test_the_share_is_that_of_the_standard_variables(
    sampler: str, argument: str, share: float
) -> None:
    """The decision for a client's trace is made by what the SDK's own sampler reads."""
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert spans.sampled_share(environment) == share


def test_no_client_decides_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's flag counts as little as ids that a sampler by ratio would always take."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    lucky = f"00-{'1' * 16}{'0' * 15}1-{ABOVE}-01"
    shares = {"0": 0, "0.25": 250, "1": 1000}
    for share, expected in shares.items():
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
        with recorded():
            flags = [incoming({"traceparent": lucky})["traceparent"][-2:] for _ in range(1000)]
        assert flags.count("01") == pytest.approx(expected, abs=100)
        assert set(flags) <= {"00", "01"}
