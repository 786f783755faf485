"""Metrics of processes outside of Lambda: to a collector, by the names that functions write."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2a_serverless import __version__, observability
from a2a_serverless.settings import Settings
from a2a_serverless.worker.agents import load_agent
from tests.e2e.commands import environment, running
from tests.e2e.conftest import CARD
from tests.e2e.test_observability import in_memory_functions, lambda_variables, loop
from tests.support.a2a_calls import Caller
from tests.support.observed import Metrics
from tests.support.otlp import Series, collector

__all__ = ["lambda_variables", "loop"]

AGENT = """
from a2a_serverless.worker import FinalError, TaskContext, Worker


class Agent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "raise":
            raise FinalError("no")
        if ctx.user_text == "fail":
            await ctx.fail("no")
            return
        ctx.usage("model-1", input_tokens=3, output_tokens=2)
        await ctx.emit_text_artifact("a chunk")
        await ctx.complete("done")


agent = Agent()
"""

TEXTS = ("hello", "raise", "fail", "hello again")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an agent with a price list."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    shutil.copy(CARD, tmp_path / "agent_card.json")
    prices = {"currency": "USD", "models": {"model-1": {"input": 1.0, "output": 2.0}}}
    (tmp_path / "prices.json").write_text(json.dumps(prices), encoding="utf-8")
    return tmp_path


@contextmanager
def serving(folder: Path, of_worker: dict[str, str], of_api: dict[str, str]) -> Iterator[Caller]:
    """`api` and `worker` over one file; both have ended behind the block, and did so soon."""
    env = environment(
        A2A_TABLE=f"file:{folder}/tasks.db",
        A2A_AUTH="none",
        OTEL_METRIC_EXPORT_INTERVAL="100",
        POWERTOOLS_SERVICE_NAME="",
    )
    api = ("api", "--card", "agent_card.json", "--port", "0")
    worker = ("worker", "--agent", "agent.py:agent")
    with (
        running(*api, env=env | of_api, output=folder / "api.log", cwd=folder) as asked,
        running(*worker, env=env | of_worker, output=folder / "worker.log", cwd=folder) as working,
    ):
        working.wait_for("turns at a time")
        with Caller(asked.wait_for(r"A2A at (\S+),")) as caller:
            yield caller
        began = time.monotonic()
        assert [asked.end(), working.end()] == [0, 0]
        assert time.monotonic() - began < 30


def of_lines(seen: Metrics) -> set[Series]:
    """The series of lines that functions have written."""
    found: set[Series] = set()
    for line in seen.lines:
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        (names,) = directive["Dimensions"]
        own = frozenset((name, line[name]) for name in names if name != "service")
        found |= {(metric["Name"], own) for metric in directive["Metrics"]}
    return found


@pytest.mark.long
def test_a_worker_elsewhere_counts_as_a_function_does(
    folder: Path,
    lambda_variables: pytest.MonkeyPatch,
    loop: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same work makes the same metrics under the same dimensions, as lines and by OTLP."""
    with collector() as of_api, collector() as of_worker:
        own = {"OTEL_EXPORTER_OTLP_ENDPOINT": of_worker.url, "OTEL_SERVICE_NAME": "pulling"}
        with serving(folder, own, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": of_api.url}) as caller:
            states = [caller.send(text)["status"]["state"] for text in TEXTS]
    assert states == [f"TASK_STATE_{it}" for it in ("COMPLETED", "FAILED", "FAILED", "COMPLETED")]

    observability.start()
    settings = Settings(auth="none", agent=f"{folder}/agent.py:agent")
    agent = load_agent(settings.agent)
    with in_memory_functions(agent, settings, lambda_variables, capsys) as functions:
        for text in TEXTS:
            functions.send(text)
        for _ in TEXTS:
            functions.work()
    written = of_lines(functions.metrics)
    assert of_api.series().keys() | of_worker.series().keys() == written
    assert {name for name, _ in of_worker.series()} >= {
        *("TimeQueued", "TimeRunning", "TimeToFirstChunk", "TimeToEnd", "Callers"),
        *("TasksEnded", "TasksFailed", "InputTokens", "OutputTokens", "ModelCost"),
    }
    for series, point in of_worker.series().items():
        values = functions.metrics.values(series[0], **dict(series[1]))
        counted = point.count if hasattr(point, "count") else point.as_double or point.as_int
        expected = len(values) if hasattr(point, "count") else sum(values)
        assert counted == pytest.approx(expected), series
    assert (of_worker.resource["service.name"], of_api.resource["service.name"]) == (
        "pulling",
        "a2a-serverless",
    )
    assert of_worker.resource["service.version"] == __version__
    assert of_worker.resource["service.instance.id"] != of_api.resource["service.instance.id"]
    assert "/v1/metrics" in of_worker.paths
    assert of_api.paths == {"/"}  # the variable of one signal is the whole address
    times, numbers = of_worker.metric("TimeToEnd"), of_worker.metric("Callers")
    assert (times.unit, times.histogram.data_points[0].explicit_bounds[-1]) == ("ms", 86_400_000)
    assert [(p.count, *p.explicit_bounds) for p in numbers.histogram.data_points] == [(2,)]
    assert of_worker.metric("Attempts").sum.is_monotonic
