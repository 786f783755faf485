"""The built functions, each in a process of its own that AWS's runtime client drives."""

import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless_tools.cloud.emulator import free_port
from tests.artefact.build import Artefact
from tests.artefact.deployment import API_KEY, SECRETS, Deployment
from tests.artefact.environment import Environment, Function, StartError
from tests.support.gateway import HOST, adapted, rest_event
from tests.support.handlers import event_file
from tests.support.secrecy import spoken
from tests.unit.push.receivers import Receiver

pytestmark = pytest.mark.emulators

ADDRESS = {f"https://{HOST}/a2a", f"https://{HOST}/a2a/"}
"""Where the events in events/ come from, with and without a slash at its end."""

TEXT = "Two days in Lisbon"
CONTENT = (TEXT, "Lisbon", "Alfama", "hook-token", "hook-secret", API_KEY, *SECRETS.values())
"""Words of messages, answers and push configurations, and the secrets of the deployment."""

STARTED = "cold start, process to first event"
LOUD = {"POWERTOOLS_LOG_LEVEL": "DEBUG"}
"""The lowest level that a deployment can choose."""


def logged(said: str) -> set[str]:
    """The actions in what a function has said, which is nothing of what a task is about."""
    assert spoken(said, CONTENT) == []
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {line["action"] for line in lines if "action" in line}


def request(method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The event of an API request, like those in events/."""
    typed = {} if body is None else {"Content-Type": "application/json"}
    headers = {"A2A-Version": "1.0", "X-API-Key": API_KEY, **typed}
    return rest_event(method, path, None if body is None else json.dumps(body), headers)


def content(answer: Mapping[str, Any]) -> Any:
    """The JSON of an answer, which was a success."""
    assert (answer["statusCode"], answer["isBase64Encoded"]) == (200, False), answer
    return json.loads(answer["body"])


def message(text: str) -> dict[str, Any]:
    """The body of a send that does not wait."""
    sent = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": sent, "configuration": {"returnImmediately": True}}


def send(api: Environment, text: str) -> str:
    """Accept a message; the id of its task."""
    answer = api.invoke(request("POST", "/message:send", message(text)))
    return str(content(answer)["task"]["id"])


def state(api: Environment, task_id: str) -> str:
    task = content(api.invoke(request("GET", f"/tasks/{task_id}")))
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def note(what: str, name: str, seconds: float) -> None:
    """Print what `make artefact` shows."""
    print(f"{what}: {name} {seconds * 1000:.0f} ms")  # noqa: T201 - pytest shows it


def test_the_layer_holds_the_runtime_alone(artefact: Artefact) -> None:
    """The layer has the package and its bytecode, not the local stack, boto3 or programs.

    The functions are those that these tests start.
    """
    built = {f"{name}Function" for name in ("Api", "Push", "Stream", "Sweeper", "Worker")}
    assert set(artefact.functions()) == built
    there = {path.name for path in artefact.layer.iterdir()}
    assert "a2a_serverless" in there
    assert not there & {"boto3", "botocore", "s3transfer", "moto", "bin"}
    package = artefact.layer / "a2a_serverless"
    left_out = ("cli", "local", "scaffold", "testing")
    assert not [name for name in left_out if (package / name).exists()]
    assert list(package.glob("__pycache__/settings.*.pyc"))


def test_a_task_passes_through_the_built_functions(deployment: Deployment, tmp_path: Path) -> None:
    """An API request, the queue's record, and what the agent wrote, each in its own process."""
    functions, made = deployment.functions, deployment.made
    with (
        functions["ApiFunction"].started(tmp_path / "api.log", **LOUD) as api,
        functions["WorkerFunction"].started(
            tmp_path / "worker.log", AGENT_CHUNK_DELAY_S="0", **LOUD
        ) as worker,
    ):
        note(STARTED, api.name, api.start_s)
        note(STARTED, worker.name, worker.start_s)
        asked_at = time.monotonic()
        task_id = send(api, TEXT)
        answered_s = time.monotonic() - asked_at
        note("to the first answer", "ApiFunction, HTTP+JSON", api.start_s + answered_s)
        card = content(api.invoke(event_file("api-agent-card")))
        assert {i["url"] for i in card["supportedInterfaces"]} == ADDRESS
        assert state(api, task_id) == "SUBMITTED"
        records = list(deployment.records(made.queue, task_id))
        assert len(records) == 1
        assert worker.invoke({"Records": records}) == {"batchItemFailures": []}
        assert state(api, task_id) == "COMPLETED"
        assert worker.invoke({"Records": records}) == {"batchItemFailures": []}
        task = content(api.invoke(request("GET", f"/tasks/{task_id}")))
        text = "".join(part["text"] for part in task["artifacts"][0]["parts"])
        assert text.count("# Lisbon in 2 days") == 1
        assert "Alfama" in text
        assert "send_turn" in logged(api.said())
        assert logged(worker.said()) >= {"attempt", "turn_ended", "dropped"}


def test_the_sweeper_takes_both_of_its_events(deployment: Deployment, tmp_path: Path) -> None:
    """A schedule event is a round; a dead letter with attempts left is sent by the next one."""
    functions = deployment.functions
    with (
        functions["ApiFunction"].started(tmp_path / "api.log", **LOUD) as api,
        functions["SweeperFunction"].started(tmp_path / "sweeper.log", **LOUD) as sweeper,
    ):
        note(STARTED, sweeper.name, sweeper.start_s)
        swept = sweeper.invoke(event_file("sweeper-schedule"))
        assert (swept["sent"], swept["failed"]) == (0, 0)
        task_id = send(api, TEXT)
        dead = list(deployment.records(deployment.made.queue, task_id))
        assert len(dead) == 1
        assert sweeper.invoke({"Records": dead}) == {"batchItemFailures": []}
        assert state(api, task_id) == "SUBMITTED"
        swept = sweeper.invoke(event_file("sweeper-schedule"))
        assert (swept["sent"], swept["failed"]) == (1, 0)
        assert logged(sweeper.said()) == {"sweep", "dead_letter_resent", "resend"}


def test_a_batch_of_dead_letters(deployment: Deployment, tmp_path: Path) -> None:
    """Of two dead letters in a batch the good one is settled, and only the bad one is kept."""
    functions = deployment.functions
    nowhere = {"A2A_UNDECODABLE_QUEUE": f"{deployment.made.undecodable_queue}-that-is-not-there"}
    with (
        functions["ApiFunction"].started(tmp_path / "api.log") as api,
        functions["SweeperFunction"].started(tmp_path / "sweeper.log", **LOUD) as sweeper,
        functions["SweeperFunction"].started(tmp_path / "full.log", **LOUD, **nowhere) as full,
    ):
        task_ids = [send(api, TEXT) for _ in range(2)]
        first, second = deployment.records(deployment.made.queue, *task_ids)
        poison = event_file("worker-sqs-undecodable")["Records"][0]
        poison |= {"body": TEXT}
        kept = {"batchItemFailures": [{"itemIdentifier": poison["messageId"]}]}
        assert full.invoke({"Records": [poison, first]}) == kept
        assert sweeper.invoke({"Records": [second, poison]}) == {"batchItemFailures": []}
        assert [state(api, task_id) for task_id in task_ids] == ["SUBMITTED", "SUBMITTED"]
        (unread,) = deployment.records(deployment.made.undecodable_queue)
        assert unread["body"] == TEXT
        assert logged(full.said()) == {"dead_letter_error", "dead_letter_resent"}
        assert logged(sweeper.said()) == {"dead_letter_undecodable", "dead_letter_resent"}


def test_a_stream_record_becomes_a_notification(deployment: Deployment, tmp_path: Path) -> None:
    """A commit's stream record wakes the delivery, whose queue record tells the webhook, signed."""
    functions, made = deployment.functions, deployment.made
    private = {"A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
    with (
        Receiver() as hook,
        functions["ApiFunction"].started(tmp_path / "api.log", **private, **LOUD) as api,
        functions["WorkerFunction"].started(
            tmp_path / "worker.log", AGENT_CHUNK_DELAY_S="0"
        ) as worker,
        functions["PushFunction"].started(tmp_path / "push.log", **private, **LOUD) as push,
    ):
        note(STARTED, push.name, push.start_s)
        task_id = send(api, TEXT)
        secret = {"scheme": "Bearer", "credentials": "hook-secret"}
        config = {"url": hook.url(), "token": "hook-token", "authentication": secret}
        content(api.invoke(request("POST", f"/tasks/{task_id}/pushNotificationConfigs", config)))
        operations = list(deployment.records(made.queue, task_id))
        assert worker.invoke({"Records": operations}) == {"batchItemFailures": []}
        commits = deployment.commits(task_id)
        assert push.invoke({"Records": commits}) == {"batchItemFailures": []}
        jobs = list(deployment.records(made.push_queue))
        assert jobs
        assert push.invoke({"Records": jobs}) == {"batchItemFailures": []}
        logged(api.said())
        assert "push_delivered" in logged(push.said())
    (told,) = hook.requests
    body = json.loads(told.body)
    assert body["statusUpdate"]["taskId"] == task_id
    assert body["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert told.headers["x-a2a-signature"].count(".") == 2


def test_the_stream_function_serves(deployment: Deployment, tmp_path: Path) -> None:
    """The built stream.sh is executable and serves the card, on the layer's packages alone."""
    function = deployment.functions["StreamFunction"]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    port, variables = free_port(), function.environment()
    variables |= {"AWS_LWA_PORT": str(port), "PATH": f"{python.parent}:{variables['PATH']}"} | LOUD
    started_at = time.monotonic()
    log = tmp_path / "stream.log"
    with log.open("wb") as file:
        program = [function.folder / function.handler]
        process = subprocess.Popen(program, cwd="/", env=variables, stdout=file, stderr=file)
    try:
        url, key = f"http://127.0.0.1:{port}", {"X-API-Key": API_KEY}
        with httpx.Client(base_url=url, trust_env=False, headers=key, timeout=60) as http:
            wait_until_ready(http, process)
            ready_s = time.monotonic() - started_at
            note(STARTED, function.name, ready_s)

            def ask(event: dict[str, Any]) -> Any:
                """The answer to what the adapter makes of an event."""
                return http.send(adapted(event, server=url)).raise_for_status().json()

            call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(TEXT)}
            first = ask(request("POST", "/", call))["result"]["task"]
            answered_s = time.monotonic() - started_at
            note("to the first answer", "StreamFunction, JSON-RPC", answered_s)
            card = ask(rest_event("GET", "/.well-known/agent-card.json"))
            assert {i["url"] for i in card["supportedInterfaces"]} == ADDRESS
            assert http.get("/tasks", headers={"A2A-Version": "1.0"}).json()["tasks"] is not None
            sent = http.post("/message:send", json=message(TEXT), headers={"A2A-Version": "1.0"})
            task = sent.json()["task"]
            assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    finally:
        process.terminate()
        process.wait(20)
    assert "send_turn" in logged(log.read_text())
    sent_ids = first["id"], task["id"]
    assert len(list(deployment.records(deployment.made.queue, *sent_ids))) == len(sent_ids)


def wait_until_ready(http: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Probe the readiness path until it answers, as the adapter does."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            assert http.get("/healthz").status_code == 200
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("stream.sh is not ready")


# -- functions that cannot work end at their start, with one sentence ------------------------------

UNSET = "{} is not set: it names the"
MODES = "Input should be '', 'api-key', 'oidc', 'api-key+oidc' or 'none'"
GIVEN_UP = "queue for notifications that were given up"
GONE = "The secret other cannot be read: ResourceNotFoundException"
WRONG = [
    ("WorkerFunction", "A2A_TABLE", "", f"{UNSET} table."),
    ("SweeperFunction", "A2A_UNDECODABLE_QUEUE", "", f"{UNSET} queue for unreadable messages."),
    ("PushFunction", "A2A_PUSH_DEAD_LETTER_QUEUE", "", f"{UNSET} {GIVEN_UP}."),
    ("ApiFunction", "A2A_AUTH", "prod", f"{{}}: {MODES}."),
    ("ApiFunction", "A2A_API_KEYS_SECRET", "other", f"{GONE}."),
]


@pytest.mark.parametrize(("function", "name", "value", "sentence"), WRONG)
def test_a_wrong_setting_stops_the_cold_start(
    deployment: Deployment, tmp_path: Path, function: str, name: str, value: str, sentence: str
) -> None:
    """Lambda is told one sentence that names the setting, before any event is taken."""
    said = start_error(deployment.functions[function], tmp_path, **{name: value})
    assert said == ("ConfigurationError", sentence.format(name))


def start_error(function: Function, tmp_path: Path, **variables: str) -> tuple[str, str]:
    """The class and the sentence of the error with which a function does not start."""
    with pytest.raises(StartError) as refused, function.started(tmp_path / "log", **variables):
        pass
    return refused.value.kind, refused.value.sentence


def test_a_card_that_is_none_stops_the_cold_start(deployment: Deployment, tmp_path: Path) -> None:
    """The sentence names the card's file."""
    built = deployment.functions["ApiFunction"]
    folder = tmp_path / "function"
    shutil.copytree(built.folder, folder)
    (folder / "agent_card.json").write_text("{")
    kind, sentence = start_error(replace(built, folder=folder), tmp_path)
    assert kind == "ConfigurationError"
    assert sentence.startswith(f"The agent card {folder / 'agent_card.json'} is not a card: ")
