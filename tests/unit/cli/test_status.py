"""`a2a-serverless status`, in this process."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.settings import load_settings
from a2a_serverless.storage import activity
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.wiring import open_backends
from a2a_serverless_tools.operate.queues import _oldest_of
from a2a_serverless_tools.operate.wording import UNCOUNTED
from tests.support.clocks import ManualClock
from tests.unit.cli.conftest import Run, ended, opened, queue_of, send, wait
from tests.unit.push.test_jobs import LETTER

pytestmark = pytest.mark.usefixtures("account", "database")


def test_it_is_well_until_something_fails(run: Run, storage: DurableStorage) -> None:
    """The exit code is 0, and 1 from the first failure on; text and JSON say the same."""
    head = opened(storage, "t")
    code, out, _ = run("status")
    assert (code, "Nothing needs a person, as far as these numbers say." in out) == (0, True)
    assert "\nOpen turns that wait\nNone waits, and none was sent" in out
    assert f"Webhooks given up: {UNCOUNTED}.\n" in out
    assert "\nThe last that went wrong\nNothing within 24 hours.\n" in out
    assert run("status", "--json").json["is_well"] is True
    ended(storage, head)
    code, out, _ = run("status")
    assert (code, "1 task has failed within the hour." in out) == (1, True)
    assert re.search(r"^  not started +1 +1$", out, re.MULTILINE)
    said = run("status", "--json")
    assert (said.code, said.json["is_well"], said.json["hour"]["failed"]) == (1, False, 1)
    assert said.json["tail"][0]["task_id"] == "t"
    listed = run("tasks", "--attention", "failed", "--reason", "not started")
    assert " t  " in listed.out
    assert run("tasks", "--attention", "failed", "--reason", "other").out == ""
    run("tasks", "--attention", "sad").refuses("choose one of failed, rejected, untold, again")


def test_a_set_aside_message_needs_a_person(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that cannot be used does, too; one that is not named is left out."""
    url = queue_of(monkeypatch, "A2A_UNDECODABLE_QUEUE")
    assert run("status").code == 0
    send(url, "poison")
    code, out, _ = run("status")
    assert (code, "1 message is set aside: messages that cannot be read." in out) == (1, True)
    assert "push jobs" not in out
    monkeypatch.setenv("A2A_UNDECODABLE_QUEUE", "nowhere.fifo")
    code, out, _ = run("status")
    assert (code, "cannot be used" in out, "unknown" in out) == (1, True, True)


def test_the_queues_of_a_file(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are in the file, under the names of the settings, and SQS is not asked for them.

    Where no setting names them, those with the default names are shown as such, and any other that
    holds something by its own.
    """
    monkeypatch.setenv("A2A_TABLE", f"file:{tmp_path / 'tasks.db'}")
    queue = open_backends(load_settings().model_copy(update={"push_queue": "push"})).pushing()
    wait(queue.dead_letter(LETTER))
    wait(queue.jobs.send(LETTER.job))
    aside = "1 message is set aside: notifications that were given up."
    other = r"^messages of push, a queue that no setting names here +1 +0 +0 s$"
    for name, rows in (("", (other, r"^push jobs +0 +0$")), ("push", (r"^push jobs +1 +0",))):
        if name:
            monkeypatch.setenv("A2A_PUSH_QUEUE", name)
        code, out, _ = run("status")
        assert (code, aside in out, "unknown" in out) == (1, True, False)
        assert "\nQueues\nqueue " in out
        for row in (r"^operations, which are turns and cancels +0 +0$", *rows):
            assert re.search(row, out, re.MULTILINE), out
        assert ("no setting" in out) is (name == "")
    assert LETTER.job.task_id in run("notifications").out
    assert run("undecodable")[:2] == (0, "")


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("ages", "shown"),
    [
        ({"PUSH_QUEUE": [], "QUEUE": [125.0, 65.0]}, {"operations": "3 min", "push": "unknown"}),
        ("AccessDenied", {"operations": "unknown", "push": "unknown"}),
    ],
    ids=["one has a figure", "no right"],
)
def test_how_old_the_oldest_message_is(
    run: Run, monkeypatch: Any, clock: ManualClock, caplog: Any, *, ages: Any, shown: dict[str, str]
) -> None:
    """CloudWatch's newest figure, by one request for all queues whose messages wait; or unknown."""
    names = {}
    for setting in ("QUEUE", "PUSH_QUEUE", "DEAD_LETTER_QUEUE"):
        url = queue_of(monkeypatch, f"A2A_{setting}")
        if setting != "DEAD_LETTER_QUEUE":
            names[url.rpartition("/")[2]] = setting
            send(url, "x")
    asked: list[Any] = []

    def answer(**request: Any) -> Any:
        asked.append(request)
        queries = request["MetricDataQueries"]
        ids = {one["MetricStat"]["Metric"]["Dimensions"][0]["Value"]: one["Id"] for one in queries}
        assert ids.keys() == names.keys()
        if isinstance(ages, str):
            raise ClientError({"Error": {"Code": ages}}, "GetMetricData")
        at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) - timedelta(seconds=60)
        found = []
        for name, own in ids.items():
            values = ages[names[name]]
            times = [at, at - timedelta(60)][: len(values)]
            found.append({"Id": own, "Values": values, "Timestamps": times})
        return {"MetricDataResults": found}

    monkeypatch.setattr(aws.client("cloudwatch"), "get_metric_data", answer)
    _, out, _ = run("status")
    for what, age in shown.items():
        assert re.search(rf"^{what}.* 1 +0 +{age}$", out, re.MULTILINE), out
    assert re.search(r"^operations whose deliveries ran out +0 +0$", out, re.MULTILINE), out
    assert (len(asked), asked[0]["ScanBy"]) == (1, "TimestampDescending")
    assert ("it needs cloudwatch:GetMetricData" in caplog.text) is isinstance(ages, str)


@pytest.mark.parametrize(
    ("states", "worker", "is_off"),
    [
        (["Disabled"], "", True),
        (["Disabled"], "worker:3 2026/01/01/[3]0", True),
        (["Disabled"], "host 17", False),
        (["Disabled", "Enabled"], "", False),
        ([], "", False),
        ("AccessDenied", "", False),
    ],
)
def test_an_event_source_that_is_off(
    run: Run, monkeypatch: Any, storage: Any, caplog: Any, states: Any, worker: str, *, is_off: bool
) -> None:
    """Where messages wait it is told at once, unless a worker outside of Lambda is there."""
    url = queue_of(monkeypatch, "A2A_QUEUE")

    def answer(**request: Any) -> Any:
        assert request["EventSourceArn"].endswith(f":{url.rpartition('/')[2]}")
        if isinstance(states, str):
            raise ClientError({"Error": {"Code": states}}, "ListEventSourceMappings")
        return {"EventSourceMappings": [{"State": state} for state in states]}

    monkeypatch.setattr(aws.client("lambda"), "list_event_source_mappings", answer)
    if worker:
        monkeypatch.setattr(activity, "process_name", lambda: worker)
        wait(activity.tell_of_process(storage.table, turns=0, now_ms=storage.clock.now_ms()))
    assert "switched off" not in run("status").out
    send(url, "x")
    code, out, _ = run("status")
    told = "1 message waits, and the worker's event source is switched off: switch it on"
    assert (told in out) is is_off
    assert code == (1 if is_off or not worker else 0)
    assert ("it needs lambda:ListEventSourceMappings" in caplog.text) is isinstance(states, str)


def test_an_emulator_has_no_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """CloudWatch is not asked about a queue of another place."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    aws.forget_clients()
    monkeypatch.setattr(aws.client("cloudwatch"), "get_metric_data", pytest.fail)
    assert wait(_oldest_of(["http://127.0.0.1:1/work.fifo"], 0)) == {}
