"""Traces of real processes: to a collector, by OTLP over HTTP."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.commands import READY, Running, environment, ran, running, running_with, until
from tests.e2e.conftest import AGENT, ARGUMENTS, CARD
from tests.support.a2a_calls import Caller, message
from tests.support.otlp import Collector, collector, text_of
from tests.unit.push.receivers import OK, Receiver, status

TRACE, ABOVE = "67891233abcdef012345678912345678", "53995c3f42cd8ad8"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


def way_to(name: str, taken: Collector) -> list[tuple[str, str]]:
    """The services and names of the spans above the last one of a name, that one first."""
    by_id = {span.span_id: (service, span) for service, span in taken.spans}
    service, span = next(found for found in reversed(taken.spans) if found[1].name == name)
    way = [(service, span.name)]
    while span.parent_span_id in by_id:
        service, span = by_id[span.parent_span_id]
        way.append((service, span.name))
    assert span.parent_span_id.hex() == ABOVE
    return way


@pytest.mark.long
def test_one_trace_over_all_processes(tmp_path: Path) -> None:
    """A request, a killed attempt, the next one and the webhook's two calls: one trace."""
    hook = iter([status(503)])
    with collector() as taken, Receiver(lambda _: next(hook, OK)) as receiver, ExitStack() as stack:
        env = environment(
            A2A_TABLE=f"file:{tmp_path}/tasks.db",
            A2A_AUTH="none",
            A2A_PUSH_QUEUE="jobs",
            A2A_PUSH_ISSUER="https://agent.example",
            A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
            A2A_PUSH_EVENTS="ends",
            A2A_PUSH_RETRY_BASE_S="0.05",
            A2A_VISIBILITY_S="2",
            PROBE_FOLDER=str(tmp_path),
            OTEL_EXPORTER_OTLP_ENDPOINT=taken.url,
            **QUICK,
        )

        def start(name: str, service: str) -> tuple[Running, str]:
            own, output = env | {"OTEL_SERVICE_NAME": service}, tmp_path / f"{service}.log"
            made = stack.enter_context(running(name, *ARGUMENTS[name], env=own, output=output))
            return made, made.wait_for(READY[name])

        _, url = start("api", "api")
        first, _ = start("worker", "first worker")
        start("push", "push")
        start("sweep", "sweep")
        headers = {"traceparent": f"00-{TRACE}-{ABOVE}-00", "A2A-Version": "1.0"}
        with Caller(url) as caller:
            hooked = {"taskPushNotificationConfig": {"url": receiver.url()}}
            how = hooked | {"returnImmediately": True}
            body = {"message": message("hold"), "configuration": how}
            task = caller.http.post("/message:send", json=body, headers=headers).json()["task"]
            caller.until("holding", task["id"])
            first.end(signal.SIGKILL)
            (tmp_path / f"release-{task['id']}").touch()
            start("worker", "second worker")
            caller.until("COMPLETED", task["id"])
        until(lambda: len(taken.named("POST")) == 2 and bool(taken.named("invoke_agent")))
    own = [(service, span) for service, span in taken.spans if span.trace_id.hex() == TRACE]
    assert {service for service, _ in own} == {"api", "second worker", "push"}
    (attempt,) = taken.named("invoke_agent")
    (link,) = attempt.links
    assert text_of(link.attributes, "a2a.link") == "previous attempt"
    assert (link.trace_id.hex(), link.span_id.hex() != ABOVE) == (TRACE, True)
    assert way_to("POST", taken) == [
        ("push", "POST"),
        ("push", "process jobs"),
        ("second worker", "invoke_agent"),
        ("second worker", "process queue"),
        ("api", "send queue"),
        ("api", "SendMessage"),
    ]
    told = [request.headers["traceparent"] for request in receiver.requests]
    assert {text[3:35] for text in told} == {TRACE}
    assert [text[36:52] for text in told] == [span.span_id.hex() for span in taken.named("POST")]
    assert taken.paths == {"/v1/traces", "/v1/metrics"}


@pytest.mark.long
@pytest.mark.parametrize("collects", ["takes", "hangs"])
def test_dev_exports_and_waits_for_no_collector(collects: str, tmp_path: Path) -> None:
    """What has ended is exported before the process ends; a bad collector holds up nothing."""
    with collector(holds=threading.Event() if collects == "hangs" else None) as taken:
        env = environment(
            PROBE_FOLDER=str(tmp_path),
            OTEL_EXPORTER_OTLP_ENDPOINT=taken.url,
            OTEL_EXPORTER_OTLP_TIMEOUT="1",
            **(QUICK if collects != "takes" else {}),
        )
        dev = ("dev", "--agent", AGENT, "--card", CARD, "--port", "0", "--file", "dev.db")
        python, output = Path(sys.executable), tmp_path / "dev.log"
        with running_with(python, *dev, env=env, output=output, cwd=tmp_path) as started:
            with Caller(started.url) as caller:
                for number in range(3):
                    caller.send(str(number))
            if collects != "takes":
                started.wait_for("Spans are dropped")
            assert started.end() == 0
            assert started.said().count("Spans are dropped") == (collects != "takes")
        # A collector that hangs takes what it holds when the block ends.
        assert len(taken.named("invoke_agent")) == (3 if collects == "takes" else 0)


PROGRAM = """
import logging, os, random, threading

logging.basicConfig(format="%(message)s")
from a2a_serverless import observability
from a2a_serverless.observability.spans import span

def make():
    random.seed(1)
    with span("made", {}):
        pass

BEFORE
observability.start()
threads = [threading.Thread(target=make) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = os.fork()
make()
if child:
    os.waitpid(child, 0)
OWN
"""
OWN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("before", "variables", "spans", "says"),
    [
        ("", {}, 5, "Overriding of current TracerProvider is not allowed"),
        (OWN, {}, 0, "Overriding of current TracerProvider is not allowed"),
        ("", {"OTEL_SDK_DISABLED": "true"}, 0, ""),
        ("", {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9999"}, 0, "a variable OTEL_* cannot be used"),
    ],
)
def test_a_process_with_variables_and_providers_of_its_own(
    before: str, variables: dict[str, str], spans: int, says: str
) -> None:
    """A provider that was there stays; bad variables end no process; ids are all different."""
    with collector() as taken:
        env = environment(OTEL_EXPORTER_OTLP_ENDPOINT=taken.url, **variables)
        program = PROGRAM.replace("BEFORE", before).replace("OWN", OWN)
        done = ran([sys.executable, "-c", program], env=env)
    assert done.returncode == 0, done.stderr
    assert len({span.trace_id for span in taken.named("made")}) == spans
    assert says in done.stderr
    assert len(done.stderr.splitlines()) <= 2
