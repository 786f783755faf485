"""All checks of a deployed stack, and those of them that need the emulator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Collection
from typing import Any, Final

import httpx

from a2a_serverless import aws
from a2a_serverless_tools.console.rendering import BASE
from tests.cloud import documented, kills, neighbours, updates
from tests.cloud.deployment import PROGRAM, ROOT, Deployment
from tests.cloud.own import COMMAND_S, command, own
from tests.cloud.preflight import guided, preflight
from tests.live import files, forms, operations, releases, streams, turns, webhooks
from tests.live.account import ERRORS, Account, is_denied
from tests.live.ground import changed
from tests.live.subject import ENDS, Subject, ordered, require, state
from tests.support import pages
from tests.support.otlp import collector

CODE: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
REFUSALS: Final = re.compile(r"AccessDenied|not authorized to perform|UnrecognizedClient")


async def given_up(deployment: Deployment, subject: Subject) -> None:
    """Receive a turn until it is a dead letter, as a function that cannot start does.

    No attempt was claimed, so that the sweeper sends it again, and the worker then ends it.
    """
    await _feed(deployment, subject, enabled=False)
    task_id = await subject.begin("say")
    await _received_to_death(deployment, subject, task_id)
    require(state(await subject.task(task_id)) == "SUBMITTED", "the turn has been started")
    await _feed(deployment, subject, enabled=True)
    await subject.completed(task_id, within_s=300)


async def failed_by_sweeper(deployment: Deployment, subject: Subject) -> None:
    """Kill the only attempt of a turn, and receive it until it is a dead letter: it fails there."""
    await changed(subject, MaxAttempts="1")
    task_id = await subject.begin("wait")
    await subject.reached(task_id, "WORKING")
    await _feed(deployment, subject, enabled=False)
    for pid in deployment.processes("WorkerFunction"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await _received_to_death(deployment, subject, task_id)
    task = await subject.ended(task_id, within_s=300)
    require(state(task) == "FAILED", f"the task of a dead letter ended as {state(task)}")


async def _feed(deployment: Deployment, subject: Subject, *, enabled: bool) -> None:
    """Have the worker's event source read its queue, or not."""
    source = (await deployment.stack()).resources["WorkerFunctionOperations"]

    async def feed(*, enabled: bool) -> None:
        call = deployment.account.call
        await call("lambda", "update_event_source_mapping", UUID=source, Enabled=enabled)

    if not enabled:
        subject.made.note("disabled event source", source, lambda: feed(enabled=True))
    await feed(enabled=enabled)


async def _received_to_death(deployment: Deployment, subject: Subject, task_id: str) -> None:
    """Receive a task's turn until its queue has taken it away."""
    queue = (await deployment.stack()).resources["OperationsQueue"]
    call, received = deployment.account.call, 0

    async def receive() -> bool:
        nonlocal received
        waits = {"VisibilityTimeout": 0, "WaitTimeSeconds": 1}
        answer = await call("sqs", "receive_message", QueueUrl=queue, **waits)
        messages = answer.get("Messages", ())
        received += sum(task_id in message["Body"] for message in messages)
        return received > 0 and not messages

    named = {"AttributeNames": ["RedrivePolicy"]}
    attributes = await call("sqs", "get_queue_attributes", QueueUrl=queue, **named)
    await subject.until("the dead letter", receive, within_s=120, every_s=0)
    most = int(json.loads(attributes["Attributes"]["RedrivePolicy"])["maxReceiveCount"])
    # The function may have received it before.
    require(received >= most - 1, f"a turn was taken away after {received} receives, not {most}")


async def refused(deployment: Deployment, _: Subject) -> None:
    """Call with each function's own role what the template does not grant it."""
    stack = await deployment.stack()
    table, queue = stack.resources["TaskTable"], stack.resources["OperationsQueue"]
    dead, secret = stack.resources["DeadLetterQueue"], stack.outputs["SigningSecret"]
    keys = stack.outputs["ApiKeys"]
    names = ("ApiRole", "StreamRole", "WorkerRole", "SweeperRole", "PushRole")
    select = {"Statement": f'SELECT * FROM "{table}"'}  # noqa: S608 - it is refused
    refusals: list[tuple[Collection[str], str, str, dict[str, Any]]] = [
        (names, "dynamodb", "scan", {"TableName": table, "Limit": 1}),
        (names, "dynamodb", "delete_table", {"TableName": table}),
        (names[:1], "dynamodb", "execute_statement", select),
        (names[:4], "secretsmanager", "get_secret_value", {"SecretId": secret}),
        (names[2:], "secretsmanager", "get_secret_value", {"SecretId": keys}),
        (names[:2], "sqs", "receive_message", {"QueueUrl": queue}),
        (names, "sqs", "purge_queue", {"QueueUrl": queue}),
        (names[4:], "sqs", "send_message", {"QueueUrl": dead, "MessageBody": "x"}),
    ]
    wrong, sessions = list[str](), dict[str, Account]()
    for role in names:
        credentials = await deployment.session(stack.resources[role])
        sessions[role] = Account(stack.region, **deployment.emulator.client(*credentials))
    for roles, service, operation, params in refusals:
        for role in roles:
            try:
                await sessions[role].call(service, operation, **params)
            except ERRORS as error:
                if not is_denied(error):
                    wrong.append(f"{role} {service}:{operation}: {aws.error_code(error)}")
            else:
                wrong.append(f"{role} {service}:{operation} was allowed")
    require(not wrong, f"not refused: {'; '.join(wrong)}")


async def commands(deployment: Deployment, subject: Subject) -> None:
    """Ask the commands of operators about a task, and have them delete all that a caller has."""
    task_id = await subject.begin("say")
    await subject.ended(task_id)
    shown = json.loads(await command(deployment, "task", task_id, "--json"))
    require(task_id in json.dumps(shown), "task shows another task")
    listed = (await command(deployment, "tasks", "--user", "default", "--json")).splitlines()
    require(any(task_id in line for line in listed), "tasks does not list the task")
    page = await _console(deployment, f"{BASE}/task/{shown['scope']}/{task_id}")
    require(task_id in page, "the console's page of the task does not name it")
    first = await _console(deployment, f"{BASE}/status")
    for title in ("Tasks that ended", "Webhooks that fail now", "Before and after the newest"):
        require(title in first, f"the console's first page does not say: {title}")
    await command(deployment, "tasks", "purge", "--user", "default", "--yes", "--settle", "1")
    gone = await subject.http.get(f"/tasks/{task_id}", headers={"A2A-Version": "1.0"})
    require(gone.status_code == httpx.codes.NOT_FOUND, f"a purged task: {gone.status_code}")


async def _console(deployment: Deployment, path: str) -> str:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *("console", "--stack", deployment.name, "--region", "us-east-1"),
        cwd=ROOT,
        env=deployment.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(COMMAND_S):
            while (said := (await process.stdout.readline()).decode()) and "http://" not in said:
                pass
        found = re.search(r"http://127\.0\.0\.1:\d+/\S*", said)
        require(found, "the console says no address")
        assert found is not None
        async with httpx.AsyncClient(timeout=60, follow_redirects=True) as client:
            await client.get(found[0])  # its key becomes a cookie
            base = httpx.URL(found[0])
            return (await client.get(base.copy_with(path=path, query=None))).text
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def scheduled(deployment: Deployment, subject: Subject) -> None:
    """Let EventBridge send a message by the code of the page; the rule is fired by hand."""
    (code,) = CODE.findall(pages.section("On a schedule"))
    page: dict[str, Any] = {}
    exec(code, page)  # noqa: S102 - the page's own
    events, daily = deployment.account.client("events"), "rate(1 day)"
    role = "arn:aws:iam::000000000000:role/schedule"
    wired = (events, subject.endpoint, subject.credential, role, json.dumps({"do": "say"}), daily)
    await asyncio.to_thread(page["schedule"], *wired)
    by_hand = json.dumps({"source": ["by-hand"]})
    fired = {"ScheduleExpression": daily, "EventPattern": by_hand}
    await deployment.account.call("events", "put_rule", Name="agent", **fired)
    event = {"Source": "by-hand", "DetailType": "now", "Detail": "{}"}
    contexts: list[str] = []

    async def look() -> str | None:
        for context in contexts:
            listed = await subject.agent.call("ListTasks", {"contextId": context})
            if ends := [state(task) for task in listed.result["tasks"] if state(task) in ENDS]:
                return ends[0]
        # Again each time: the emulator waits for five seconds, and does not try again.
        sent = await deployment.account.call("events", "put_events", Entries=[event])
        contexts.append(f"schedule-{sent['Entries'][0]['EventId']}")
        return None

    ended = await subject.until("the scheduled task", look, within_s=60, every_s=5)
    require(ended == "COMPLETED", f"the scheduled task ended as {ended}")


async def quiet(deployment: Deployment, subject: Subject) -> None:
    """Look for refused calls in all log groups, and in what the web servers have written.

    The client's key is in none of their lines.
    """
    account = deployment.account
    lines: list[str] = []
    for group in (await account.call("logs", "describe_log_groups"))["logGroups"]:
        named = {"logGroupName": group["logGroupName"]}
        events = await account.pages("logs", "filter_log_events", "events", **named)
        lines += [event["message"] for event in events]
    require(lines, "the functions have logged nothing")
    for log in deployment.door.folder.rglob("*.log"):
        if log.name in {"stream.log", "worker.log"}:
            lines += log.read_text(encoding="utf-8").splitlines()
    # When the exporter is taken away, a grant may go before a function's last start with it; that
    # they have the grant is what `traces` shows.
    found = [line for line in lines if REFUSALS.search(line) and "otel_not_used" not in line]
    require(not found, f"refused: {[REFUSALS.split(line)[-1][:300] for line in found[:3]]}")
    require(not any(subject.credential in line for line in lines), "a log has the client's key")


async def traced(deployment: Deployment, subject: Subject) -> None:
    """Have the functions export to a collector, and follow an attempt up to its request."""
    trace = uuid.uuid4().hex
    headers = {"traceparent": f"00-{trace}-{trace[:16]}-00"}
    with collector() as taken:

        async def look() -> list[str] | None:
            own = {s.span_id.hex(): s for _, s in taken.spans if s.trace_id.hex() == trace}
            above = next((key for key, s in own.items() if s.name == "invoke_agent"), "")
            names = []
            while (span := own.get(above)) is not None:
                names.append(span.name.partition(" ")[0])
                above = span.parent_span_id.hex()
            return names if above == trace[:16] else None

        all_traces = f"{deployment.parameters['Settings']},OTEL_TRACES_SAMPLER_ARG=1"
        await changed(subject, OtelEndpoint=taken.url, Settings=all_traces)
        await subject.agent.call("SendMessage", {"message": ordered("say")}, headers)
        way = await subject.until("the trace", look, within_s=60)
        remains = await subject.made.undo()  # while what they export to is there
        require(not remains, f"the exporter was not taken away: {remains}")
    require(way == ["invoke_agent", "process", "send", "SendMessage"], f"the trace is {way}")


CHECKS: Final = (
    *operations.CHECKS,
    *streams.CHECKS,
    *files.CHECKS,
    *turns.CHECKS,
    *webhooks.CHECKS,
    *releases.CHECKS,
    own("dead-letter", "a turn that is received too often is a dead letter, and ends", given_up),
    own("refused-calls", "each role is refused what it has no permission for", refused),
    own("traces", "functions export one trace, from the request to the attempt", traced),
    own("commands", "task, tasks, console and purge work on the stack", commands),
    own("schedule", "a rule of EventBridge opens a task, as the documentation has it", scheduled),
    own("preflight", "what would be replaced is told, and no change set remains", preflight),
    own("guided", "sam deploy --guided ends by Enter alone", guided),
    *kills.CHECKS,
    own("dead-letter-fails", "the sweeper fails a turn without attempts left", failed_by_sweeper),
    *updates.CHECKS,
    *neighbours.CHECKS,
    *documented.CHECKS,
    *forms.CHECKS,
    own("logs", "no call of a function was refused, by all logs", quiet),
)
"""In the order in which they run: the logs are those of all the others."""
