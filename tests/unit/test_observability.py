"""Log lines, metrics and segments: their form, and when there are none."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from unittest.mock import Mock

import pytest

from a2a_serverless import aws, observability
from a2a_serverless.errors import UnavailableError
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.json_lines import _WITHHELD
from a2a_serverless.observability.logs import log_context
from tests.support.observed import counted, logged, root_logger

logger = logging.getLogger("a2a_serverless.test")


def test_a_line_says_what_the_code_works_on() -> None:
    """Each logger's lines inside of a context have its fields; a line's own fields win."""
    with logged() as lines, log_context(task_id="task-1", turn=1, attempt=None):
        logger.info("first", extra={"action": "one"})
        with log_context(turn=4, attempt=2):
            logging.getLogger("somebody.elses").warning("second", extra={"task_id": "task-2"})
        logger.info("third")
    logger.info("nobody writes this down")
    shown = [{k: line.get(k) for k in ("task_id", "turn", "attempt", "action")} for line in lines]
    assert shown == [
        {"task_id": "task-1", "turn": 1, "attempt": None, "action": "one"},
        {"task_id": "task-2", "turn": 4, "attempt": 2, "action": None},
        {"task_id": "task-1", "turn": 1, "attempt": None, "action": None},
    ]
    assert [line["message"] for line in lines] == ["first", "second", "third"]
    assert [line["level"] for line in lines] == ["INFO", "WARNING", "INFO"]
    of_lambda = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    assert all(re.fullmatch(of_lambda, line["timestamp"]) for line in lines)
    assert {line["service"] for line in lines} == {"agent"}


async def test_tasks_and_threads_inherit_the_context() -> None:
    """Tasks and AWS calls in threads log the fields of the code that started them."""

    async def concurrent(number: int) -> None:
        with log_context(turn=number):
            await asyncio.sleep(0)
            logger.info("task")

    with logged() as lines, log_context(task_id="task-1"):
        await asyncio.gather(concurrent(1), concurrent(2))
        await aws.call(logger.info, msg="thread")
    told = [(line["task_id"], line.get("turn")) for line in lines]
    assert told == [("task-1", 1), ("task-1", 2), ("task-1", None)]


async def test_other_peoples_exceptions_are_shown_without_their_texts() -> None:
    """Types and frames of a whole chain, groups and notes included; asyncio's words are cut."""

    def fail(text: str) -> None:
        try:
            int(text)
        except ValueError as error:
            error.add_note(f"note: {text}")
            raise ExceptionGroup(text, [KeyError(text)]) from error

    secret = "my secret"  # a frame shows the code, and nothing of its values
    with logged() as lines:
        try:
            fail(secret)
        except ExceptionGroup:
            logger.exception("it failed")
        lost = {"message": "Task exception was never retrieved", "future": f"ValueError({secret})"}
        asyncio.get_running_loop().call_exception_handler(lost)
        logger.error("ours", exc_info=UnavailableError("No answer from AWS after 12 attempts"))
    line, never_retrieved, ours = lines
    assert "my secret" not in json.dumps([line, never_retrieved])
    assert never_retrieved["message"] == lost["message"]
    for part in ("KeyError", "in fail", f"ValueError: {_WITHHELD}", "direct cause"):
        assert part in line["exception"]
    assert line["exception_name"] == "ExceptionGroup"
    assert ours["exception"].endswith("No answer from AWS after 12 attempts")
    with logged(shows_texts=True) as lines:  # A2A_LOG_ERROR_TEXTS
        logger.error("theirs", exc_info=ValueError("my secret"))
    assert "my secret" in lines[0]["exception"]


def test_libraries_do_not_log_requests() -> None:
    """At DEBUG the runtime and the agent log everything, and botocore still no request bodies."""
    with logged("DEBUG") as lines:
        logger.debug("runtime")
        logging.getLogger("agent").debug("agent")
        logging.getLogger("botocore.endpoint").debug("Making request with my secret")
        logging.getLogger("a2a.server.routes").debug("Request body: my secret")
    assert [line["message"] for line in lines] == ["runtime", "agent"]


@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({"POWERTOOLS_METRICS_NAMESPACE": "Mine"}, True),
        ({}, False),
        ({"POWERTOOLS_METRICS_NAMESPACE": "M", "POWERTOOLS_METRICS_DISABLED": "true"}, False),
    ],
)
def test_a_function_starts_by_its_environment(
    variables: dict[str, str], *, counts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Powertools' variables say under which names a function logs and counts, and whether."""
    lambda_sets = {"AWS_LAMBDA_FUNCTION_NAME": "worker", "POWERTOOLS_SERVICE_NAME": "my-agent"}
    with root_logger():
        observability.start({**lambda_sets, "POWERTOOLS_LOG_LEVEL": "WARNING", **variables})
        try:
            logger.info("not this")
            logger.warning("this")
            metrics.count("Attempts")
            metrics.flush()
        finally:
            metrics.stop()
    line, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["message"], line["service"], len(rest)) == ("this", "my-agent", counts)
    for metric in rest:
        assert metric["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Mine"
        assert (metric["service"], metric["Attempts"]) == ("my-agent", [1.0])


def test_lines_stay_on_stdout_while_agents_redirect_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of two agents that redirect stdout at the same time gets a line of the process."""
    outside, caught = sys.stdout, io.StringIO()
    function = {"AWS_LAMBDA_FUNCTION_NAME": "worker", "POWERTOOLS_METRICS_NAMESPACE": "Mine"}

    def says(text: str) -> None:
        logger.warning(text)
        metrics.count("Attempts")
        metrics.flush()

    with root_logger():
        observability.start(function)
        try:
            with redirect_stdout(caught):
                says("beside an agent")
            caught.close()
            sys.stdout = caught
            says("after it")
        finally:
            sys.stdout = outside
            metrics.stop()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [line.get("message", line.get("Attempts")) for line in lines]
    assert told == ["beside an agent", [1.0], "after it", [1.0]]


def test_counts_that_cannot_be_written_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A turn neither fails nor ends its worker because the reader of stdout has left."""
    metrics.start(
        metrics.Emf(
            "Mine",
            service="agent",
            write=Mock(side_effect=ValueError("I/O operation on closed file")),
        )
    )
    try:
        metrics.count("Attempts")
        metrics.flush()
    finally:
        metrics.stop()
    assert [record.__dict__["action"] for record in caplog.records] == ["metrics_not_written"]


def test_counts_are_summed_and_times_are_kept() -> None:
    """Counts are added up; times and numbers are kept one by one; a set of dimensions is a line."""
    with counted() as seen:
        metrics.count("Attempts")
        metrics.count("Attempts", 2)
        metrics.count("TasksEnded", state="failed")
        for time_ms in (12.5, -3):
            metrics.time("TimeToEnd", time_ms)
        for caller in (17, 4):
            metrics.caller(caller, whose="failed")
        metrics.flush()
        assert seen.values("Attempts") == [3.0]
        assert seen.values("TasksEnded", state="failed") == [1.0]
        assert seen.values("TimeToEnd") == [12.5, 0.0]
        assert seen.values("Callers", whose="failed") == [17, 4]
        metrics.flush()
    assert len(seen.lines) == 3
    told = [line["_aws"]["CloudWatchMetrics"][0]["Metrics"] for line in seen.lines]
    units = {metric["Name"]: metric["Unit"] for metrics in told for metric in metrics}
    counts = {"Attempts": "Count", "TasksEnded": "Count"}
    assert units == {**counts, "TimeToEnd": "Milliseconds", "Callers": "None"}


def test_nothing_is_lost_between_threads() -> None:
    """Counting and flushing at the same time neither loses nor doubles anything."""

    def work(_: int) -> None:
        for number in range(200):
            metrics.count("Attempts")
            if number % 10 == 0:
                metrics.flush()

    with counted() as seen, ThreadPoolExecutor(4) as threads:
        assert len([*threads.map(work, range(4))]) == 4
    assert seen.total("Attempts") == 800


def test_functions_and_named_services_are_observed() -> None:
    """A command at a terminal logs for a person, and one that is deployed as a function does."""
    for name in ("METRICS_NAMESPACE", "SERVICE_NAME"):
        with root_logger() as root:
            before = root.handlers[:]
            observability.start({f"POWERTOOLS_{name}": "agent"})
            assert (root.handlers != before) is (name == "SERVICE_NAME")


def test_one_variable_has_what_is_observed() -> None:
    """A2A_SETTINGS chooses level and share of traces, for the process and what it starts."""
    environment = {"A2A_SETTINGS": "POWERTOOLS_LOG_LEVEL=ERROR,OTEL_TRACES_SAMPLER_ARG=0.5"}
    observability.start(environment)
    assert (environment["POWERTOOLS_LOG_LEVEL"], spans.sampled_share(environment)) == ("ERROR", 0.5)
    assert spans.sampled_share({"AWS_LAMBDA_FUNCTION_NAME": "worker"}) == 0.05
    assert spans.sampled_share({}) == 1


@pytest.mark.parametrize(("chosen", "number"), [("2", 17), ("", 1_000_017)])
def test_a_caller_alone_is_told_from_one_of_two(chosen: str, number: int) -> None:
    """Where one caller suffices for an alarm, its number is above a million."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            observability, "_lines", lambda _: [metrics.Emf("N", service="s", write=seen.append)]
        )
        observability.start({"POWERTOOLS_SERVICE_NAME": "s", "A2A_ALARM_CALLERS": chosen})
    metrics.caller(17, whose="failed")
    metrics.close()
    (line,) = seen
    assert json.loads(line)["Callers"] == [number]
