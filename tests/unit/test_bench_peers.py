"""The comparison with the peers: what has no figure, and why, and that all do the same work."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer, bind
from benchmarks.peers import __main__ as peers
from benchmarks.peers import scenarios, table
from benchmarks.peers.scenarios import Figures, Size
from benchmarks.peers.services import Postgres, Redis
from benchmarks.peers.systems import Services, System
from benchmarks.processes import Server

ONE = Size(echoes=2, chunks=2, tasks=2, senders=1, cancels=1, victims=0, kill_patience_s=0)
TODAY = dt.date(2026, 11, 22)
ALL = dict(scenarios.SCENARIOS)

Answer = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request, as a route of Starlette does."""


def services(folder: Path) -> Services:
    """Services that no system of these tests asks."""
    return Services(
        folder=folder,
        environments=folder,
        postgres=Postgres(port=0, psql="", environment={}),
        redis=Redis(port=0),
    )


def task(state: str, *held: object, name: str = "t") -> dict[str, Any]:
    """A task with a state, and chunks."""
    parts = [{"text": f"{number} 0 "} for number in held]
    status = {"state": f"TASK_STATE_{state}"}
    return {"id": name, "status": status, "artifacts": [{"parts": parts}]}


def chunk(number: object) -> dict[str, Any]:
    """An event with a chunk."""
    artifact = {"parts": [{"text": f"{number} 0 "}]}
    return {"artifactUpdate": {"taskId": "t", "artifact": artifact}}


def ended(state: str = "COMPLETED") -> dict[str, Any]:
    """An event with a task's last state."""
    return {"statusUpdate": {"taskId": "t", "status": {"state": f"TASK_STATE_{state}"}}}


def sse(*lines: str) -> Response:
    """A stream of these texts."""

    async def sent() -> AsyncIterator[str]:
        for line in lines:
            yield f"data: {line}\n\n"

    return StreamingResponse(sent(), media_type="text/event-stream")


def streamed(events: list[dict[str, Any]]) -> Response:
    """A stream of these events."""
    return sse(*(json.dumps({"result": event}) for event in events))


def pings(_: Request) -> Response:
    """A stream that never ends, and has no event."""

    async def sent() -> AsyncIterator[str]:
        while True:
            yield ": ping\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(sent(), media_type="text/event-stream")


def speaking(**answers: Callable[[Any], Any]) -> Answer:
    """A server that answers each method with the result of a function; a list is a stream."""

    async def answer(request: Request) -> Response:
        asked = await request.json()
        result = answers[asked["method"]](asked["params"])
        if isinstance(result, list):
            return streamed(result)
        return JSONResponse({"jsonrpc": "2.0", "id": "1", "result": result})

    return answer


def answering(*numbers: int, state: str = "COMPLETED") -> Answer:
    """A server that streams chunks of these numbers, and answers anything else with a task."""
    events = [{"task": task("WORKING")}, *map(chunk, numbers), ended(state)]
    others = dict.fromkeys(("SendMessage", "ListTasks"), lambda _: {"task": task(state)})
    return speaking(SendStreamingMessage=lambda _: events, **others)


def system(*answers: Answer, notes: str = "started t 1 0\n") -> Any:
    """A system of several servers in this process, whose agents have noted something.

    It has two victims; `VICTIM` in the notes is the process that will be killed.
    """

    @contextmanager
    def start(_: Services, folder: Path) -> Iterator[System]:
        sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
        with ExitStack() as stack:
            processes = [stack.enter_context(subprocess.Popen(sleeping)) for _ in range(2)]
            for process in processes:
                stack.callback(process.kill)
            servers = []
            for answer in answers:
                app = Starlette(routes=[Route("/", answer, methods=["POST"])])
                server = stack.enter_context(HttpServer(app, bind(0)))
                servers.append(Server(said=server.url, process=processes[0]))
            file = folder / "notes"
            file.write_text(notes.replace("VICTIM", str(processes[-1].pid)))
            yield System(
                dialect="1.0",
                servers=tuple(servers),
                notes=file,
                victims=tuple(Server(said="", process=process) for process in processes),
            )

    return start


def never_started(_: Services, folder: Path) -> Any:
    raise RuntimeError(f"python in {folder} did not start:\nno module")


def compared(tmp_path: Path, **systems: Any) -> tuple[peers.Comparison, str]:
    """One short round, and its table."""
    done = peers.compare(services(tmp_path), systems, ONE, rounds=1)
    return done, table.tables(done.rounds, done.failed, done.versions, "make", TODAY)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios that these servers know."""
    known = {name: scenarios.SCENARIOS[name] for name in ("echo", "throughput", "lists")}
    monkeypatch.setattr(scenarios, "SCENARIOS", known)


def test_a_system_that_does_not_start_has_an_empty_column_and_a_reason(tmp_path: Path) -> None:
    """The others are compared all the same."""
    done, text = compared(tmp_path, good=system(answering(0, 1, 2, 3, 4)), dead=never_started)
    assert list(done.rounds[0]) == ["good"]
    echo = next(line for line in text.splitlines() if "echo, ms, p50" in line)
    assert echo.endswith("| - |")
    assert "did not start: no module" in text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answering(0, 1, 3, 4), "chunks came as [0, 1, 3, 4]"),
        (answering(0, 2, 1, 3, 4), "chunks came as [0, 2, 1, 3, 4]"),
        (answering(0, 1, 2, 3, 4, state="FAILED"), "a stream ended in failed"),
        (lambda _: JSONResponse({"error": {"code": -32603}}), "-32603"),
        (lambda _: Response("busy", 503), "busy"),
        (lambda _: sse("[]"), "[]"),
        (lambda _: sse('{"result": {"task": {"id": 5}}}'), "No event"),
        (lambda _: streamed([chunk("one"), ended()]), "no chunk of the agent"),
    ],
)
def test_a_system_that_answers_wrongly_has_no_figure(
    answer: Answer, why: str, tmp_path: Path
) -> None:
    """A lost chunk, a wrong order, a failed task, an error: none of it is compared."""
    done, text = compared(tmp_path, wrong=system(answer))
    assert done.rounds == [{}]
    assert why in done.failed["wrong"]
    assert why in text


def test_a_scenario_that_a_system_cannot_do_is_an_empty_cell(tmp_path: Path) -> None:
    """If a system cannot list, that row is empty and says why; other rows have figures."""
    done, text = compared(tmp_path, good=system(answering(0, 1, 2, 3, 4)))
    figures = done.rounds[0]["good"]
    assert len(figures.values["echo"]) == 2
    assert "page with history" not in figures.values
    assert "good, lists: " in text


def test_the_table_has_the_median_of_the_rounds() -> None:
    """The table has the median of the rounds' percentiles; a failed system has no figure."""
    rounds = [{"a": Figures()} for _ in range(3)]
    for round_, value in zip(rounds, (10.0, 90.0, 20.0), strict=True):
        round_["a"].values["echo"] += [value, value]
    text = table.tables(rounds, {"b": "is away"}, {"a": "1.0", "b": ""}, "make", TODAY)
    assert "| blocking echo, ms, p50 | 20 | - |" in text
    assert "- b: is away" in text


def test_the_page_keeps_what_is_around_the_tables(tmp_path: Path) -> None:
    """A later run replaces the tables alone."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, "new")
    table.write(page, "newer")
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnewer\n{table.END}\nafter\n"


Only = Callable[..., list[dict[str, Figures]]]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Only:
    """A comparison that has one scenario, and no check before it."""

    async def unchecked(_: object) -> None: ...

    def run(name: str, system: Any, size: Size = ONE, rounds: int = 1) -> list[dict[str, Figures]]:
        monkeypatch.setattr(scenarios, "SCENARIOS", {name: ALL[name]})
        monkeypatch.setattr(scenarios, "check", unchecked)
        done = peers.compare(services(tmp_path), {"one": system}, size, rounds)
        assert not done.failed
        return done.rounds

    return run


def test_a_scenario_that_fails_late_leaves_no_value(only: Only) -> None:
    """Three echoes warm up, one is measured, and the next one fails: the row has no value."""
    states = iter(["COMPLETED"] * 4 + ["FAILED"])
    (round_,) = only("echo", system(speaking(SendMessage=lambda _: task(next(states)))))
    assert not round_["one"].values
    assert "a failed task" in round_["one"].missing["echo"]


def test_a_row_whose_scenario_failed_in_one_round_is_empty() -> None:
    """The rounds in which it did not fail give no median; the rows of other scenarios have one."""
    rounds = [{"a": Figures()} for _ in range(3)]
    for round_ in rounds:
        round_["a"].values["echo"] += [10.0]
        round_["a"].values["tasks a second"] += [20.0]
    del rounds[1]["a"].values["echo"]
    rounds[1]["a"].missing["echo"] = "it was\nlate"
    text = table.tables(rounds, {}, {"a": ""}, "make", TODAY)
    assert "blocking echo" not in text
    assert "| completed tasks a second | 20 |" in text
    assert "- a, echo: it was late" in text


def test_each_row_is_of_a_scenario() -> None:
    """A row with a misspelt scenario would keep its values when that scenario fails."""
    assert set(table.ROWS) == set(ALL)


WHOLE = [{"task": task("WORKING")}, chunk(0), chunk(1), ended()]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([*WHOLE[:2], ended()], WHOLE, "chunks came as [0]"),
        ([*WHOLE[:3], ended("FAILED")], WHOLE, "ended in failed"),
        (WHOLE[:3], WHOLE, "ended in working"),
        (WHOLE, [WHOLE[0], chunk(0), ended()], "to a follower as [0]"),
        (WHOLE, [WHOLE[0], chunk(1), chunk(0), ended()], "to a follower as [1, 0]"),
        (WHOLE, [{"task": task("WORKING", 0)}, ended()], "to a follower as [0]"),
        (WHOLE, [*WHOLE[:3], ended("CANCELED")], "ended in canceled"),
        (WHOLE, WHOLE[:3], "ended in working"),
    ],
)
def test_a_client_that_does_not_get_every_chunk_and_the_end_gives_no_figure(
    first: list[dict[str, Any]], second: list[dict[str, Any]], why: str, only: Only
) -> None:
    """That holds for the client that sent the message and for those that follow."""
    servers = (
        speaking(SendStreamingMessage=lambda _: first),
        speaking(SubscribeToTask=lambda _: second),
    )
    (round_,) = only("chunks", system(*servers))
    assert why in round_["one"].missing["chunks"]
    assert not round_["one"].values


def test_a_follower_may_find_chunks_in_the_task_that_it_gets_first(only: Only) -> None:
    """Those count as received, even if an event repeats one; the events have times."""
    held = [{"task": task("WORKING", 0)}, chunk(0), chunk(1), ended()]
    servers = (
        speaking(SendStreamingMessage=lambda _: WHOLE),
        speaking(SubscribeToTask=lambda _: held),
    )
    (round_,) = only("chunks", system(*servers))
    assert not round_["one"].missing
    assert len(round_["one"].values["chunk, another process"]) == 5 * 2 * 2


@pytest.mark.parametrize("events", [[ended("FAILED")], [chunk(0)], []])
def test_a_first_event_counts_if_the_stream_completes(
    events: list[dict[str, Any]], only: Only
) -> None:
    """A stream that fails, breaks off or has no event has no first event to compare."""
    (round_,) = only("first byte", system(speaking(SendStreamingMessage=lambda _: events)))
    assert "a stream ended in" in round_["one"].missing["first byte"]
    assert not round_["one"].values


HEARD = "started t 1 0\nheard t 1 0\n"


@pytest.mark.parametrize("answer", ["COMPLETED", "FAILED", "WORKING"])
def test_a_cancel_after_which_the_task_is_not_canceled_has_no_figure(
    answer: str, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its agent heard is no figure either."""
    monkeypatch.setattr(scenarios, "CANCEL_PATIENCE_S", 0.3)
    methods = ("SendMessage", "CancelTask", "GetTask")
    server = speaking(**dict.fromkeys(methods, lambda _: task(answer)))
    (round_,) = only("cancels", system(server, notes=HEARD))
    assert "cancels" in round_["one"].missing
    assert not round_["one"].values


def test_a_cancel_is_known_when_an_answer_says_so(only: Only) -> None:
    """If the answer of the cancel does not say it yet, the client asks until one does."""
    states = itertools.cycle(["WORKING", "CANCELED"])
    server = speaking(
        SendMessage=lambda _: task("WORKING"),
        CancelTask=lambda _: task("WORKING"),
        GetTask=lambda _: task(next(states)),
    )
    (round_,) = only("cancels", system(server, notes=HEARD))
    assert not round_["one"].missing
    known = round_["one"].values["cancel, known"]
    assert len(known) == 2
    assert min(known) > 0.04  # asked twice, 20 ms apart


@pytest.mark.parametrize(
    ("last", "finished", "recovers"),
    [("COMPLETED", 100, True), ("FAILED", 50, False), ("WORKING", 50, False)],
)
def test_a_killed_task_finishes_if_it_completes(
    last: str, finished: float, *, recovers: bool, only: Only
) -> None:
    """Every round kills; a task that fails did not finish, and one that had ended was not hit.

    There are times only if all finish.
    """
    states = {"t0": "COMPLETED", "t1": last, "t2": "COMPLETED"}
    names = itertools.cycle(states)
    server = speaking(
        SendMessage=lambda _: task("WORKING", name=next(names)),
        GetTask=lambda params: task(states[params["id"]], name=params["id"]),
    )
    notes = "".join(f"started {name} VICTIM 0\n" for name in states) + "ended t2 VICTIM 1\n"
    now_ns = time.monotonic_ns()
    notes += f"started t0 1 {now_ns}\nstarted t1 1 {now_ns + 60 * 10**9}\n"
    size = replace(ONE, victims=3, kill_patience_s=0.5)
    rounds = only("kills", system(server, notes=notes), size, rounds=2)
    for round_ in rounds:
        assert not round_["one"].missing
        assert round_["one"].values["killed tasks, finished"] == [finished]
        assert ("recovery after a kill" in round_["one"].values) is recovers
        again = [60] if recovers else []
        assert round_["one"].values["restart after a kill"] == pytest.approx(again, abs=20)


def test_a_killed_task_that_ended_without_an_agent_has_no_figure(only: Only) -> None:
    """A server that says "completed" of a task whose agent was killed did not do the work."""
    server = speaking(**dict.fromkeys(("SendMessage", "GetTask"), lambda _: task("COMPLETED")))
    size = replace(ONE, victims=1, kill_patience_s=0.5)
    (round_,) = only("kills", system(server, notes="started t VICTIM 0\n"), size)
    assert "no agent has started again" in round_["one"].missing["kills"]
    assert not round_["one"].values


def test_starts_are_counted_when_the_tasks_have_ended(only: Only, tmp_path: Path) -> None:
    """A second start that comes just before the end of its task counts."""
    states = iter(["WORKING", "WORKING", "COMPLETED"])

    def get(_: object) -> dict[str, Any]:
        if (state := next(states)) == "COMPLETED":
            with (tmp_path / "0-0" / "notes").open("a") as notes:
                notes.write("started t 2 0\n")
        return task(state)

    server = speaking(SendMessage=lambda _: task("WORKING"), GetTask=get)
    (round_,) = only("duplicates", system(server))
    assert round_["one"].values["starts for a message sent twice"] == [2 / 5]


def test_a_stream_that_only_sends_pings_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scenario has a bound, and so has the check before them."""
    monkeypatch.setattr(scenarios, "SCENARIO_S", 0.5)
    done, _ = compared(tmp_path, wrong=system(pings))
    assert "no end within 0.5 s" in done.failed["wrong"]


@pytest.mark.parametrize("text", ["one", ""])
def test_a_chunk_that_no_agent_sent_is_a_wrong_answer(text: str, only: Only) -> None:
    """A scenario that gets it has a reason, and the run goes on."""
    events = [WHOLE[0], chunk(text), ended()]
    (round_,) = only("chunks", system(speaking(SendStreamingMessage=lambda _: events)))
    assert "no chunk of the agent" in round_["one"].missing["chunks"]


@pytest.mark.parametrize("always", [[{"messageId": "m"}], []])
def test_a_page_has_history_if_it_was_asked_for(always: list[Any], only: Only) -> None:
    """Pages that have it always, or never, are not compared."""
    page = {"tasks": [task("COMPLETED") | {"history": always}] * 50}
    (round_,) = only("lists", system(speaking(ListTasks=lambda _: page)))
    assert "history" in round_["one"].missing["lists"]
    assert not round_["one"].values


def test_pages_with_and_without_history_are_compared(only: Only) -> None:
    """Each page is as it was asked for."""
    whole = task("COMPLETED") | {"history": [{"messageId": "m"}]}
    pages = {True: {"tasks": [task("COMPLETED")] * 50}, False: {"tasks": [whole] * 50}}
    server = speaking(ListTasks=lambda params: pages["historyLength" in params])
    (round_,) = only("lists", system(server))
    assert not round_["one"].missing
    assert {len(values) for values in round_["one"].values.values()} == {10}
