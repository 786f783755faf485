"""What is checked of a stack on the emulator beside the checks of tests/live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Mapping
from typing import Any, Final

import httpx

from a2a_serverless import aws
from a2a_serverless_tools.cloud.template import SUBSTITUTIONS
from a2a_serverless_tools.console.rendering import BASE
from tests.cloud import documented, kills, neighbours, releases, restores, updates
from tests.cloud.deployment import ROOT, Deployment
from tests.cloud.guided import guided
from tests.cloud.own import COMMAND_S, ENDS, Own, alone, command
from tests.cloud.preflight import preflight
from tests.live.account import ERRORS, Account, is_denied
from tests.live.findings import Figures, require
from tests.live.subject import Subject, artifact_text, ordered, state, status_text
from tests.support import pages
from tests.support.otlp import collector

CODE: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
REFUSALS: Final = re.compile(r"AccessDenied|not authorized to perform|UnrecognizedClient")


async def followed_up(_: Deployment, subject: Subject) -> Figures:
    """Answer a task's question."""
    task_id = await subject.begin("ask")

    async def look() -> dict[str, Any] | None:
        task = await subject.task(task_id)
        return task if state(task) == "INPUT_REQUIRED" else None

    asked = await subject.until("the question", look, within_s=60, every_s=0.2)
    answer = ordered("say")
    message = {**answer, "taskId": task_id, "contextId": asked["contextId"]}
    await subject.agent.call("SendMessage", {"message": message})
    task = await subject.ended(task_id, within_s=60)
    require(state(task) == "COMPLETED", f"the answered task ended as {state(task)}")
    return {}


async def retried(deployment: Deployment, subject: Subject) -> Figures:
    """Have the agent raise an error in each attempt."""
    attempts = int((await deployment.stack()).parameters["MaxAttempts"])
    task = await subject.ended(await subject.begin("fail"), within_s=300, every_s=1)
    require(state(task) == "FAILED", f"the task ended as {state(task)}")
    started = artifact_text(task)
    require(started, "the last attempt left nothing")
    return {"attempts": attempts, "said": status_text(task)}


async def given_up(deployment: Deployment, subject: Subject) -> Figures:
    """Receive a turn until it is a dead letter, as a function that cannot start does.

    No attempt was claimed, so that the sweeper sends it again, and the worker then ends it.
    """
    await _feed(deployment, subject, enabled=False)
    task_id = await subject.begin("say")
    received = await _received_to_death(deployment, subject, task_id)
    require(state(await subject.task(task_id)) == "SUBMITTED", "the turn has been started")
    await _feed(deployment, subject, enabled=True)
    task = await subject.ended(task_id, within_s=300, every_s=1)
    require(state(task) == "COMPLETED", f"the task of a dead letter ended as {state(task)}")
    return {"receives": received}


async def failed_by_sweeper(deployment: Deployment, subject: Subject) -> Figures:
    """Kill the only attempt of a turn, and receive it until it is a dead letter: it fails there."""
    async with deployment.changed(MaxAttempts="1"):
        task_id = await subject.begin("wait")
        await subject.working(task_id)
        await _feed(deployment, subject, enabled=False)
        for pid in deployment.processes("WorkerFunction"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        received = await _received_to_death(deployment, subject, task_id)
        task = await subject.ended(task_id, within_s=300, every_s=1)
        await _feed(deployment, subject, enabled=True)
    require(state(task) == "FAILED", f"the task of a dead letter ended as {state(task)}")
    return {"receives": received, "said": status_text(task)}


async def _feed(deployment: Deployment, subject: Subject, *, enabled: bool) -> None:
    """Have the worker's event source read its queue, or not."""
    source = (await deployment.stack()).resources["WorkerFunctionOperations"]

    async def feed(*, enabled: bool) -> None:
        await deployment.account.call(
            "lambda", "update_event_source_mapping", UUID=source, Enabled=enabled
        )

    if not enabled:
        subject.made.note("disabled event source", source, lambda: feed(enabled=True))
    await feed(enabled=enabled)


async def _received_to_death(deployment: Deployment, subject: Subject, task_id: str) -> int:
    """Receive a task's turn until its queue has taken it away; return how often."""
    queue = (await deployment.stack()).resources["OperationsQueue"]
    call, received = deployment.account.call, 0

    async def receive() -> bool | None:
        nonlocal received
        answer = await call(
            "sqs", "receive_message", QueueUrl=queue, VisibilityTimeout=0, WaitTimeSeconds=1
        )
        messages = answer.get("Messages", ())
        received += sum(task_id in message["Body"] for message in messages)
        return (received > 0 and not messages) or None

    attributes = await call(
        "sqs", "get_queue_attributes", QueueUrl=queue, AttributeNames=["RedrivePolicy"]
    )
    await subject.until("the dead letter", receive, within_s=120, every_s=0)
    most = int(json.loads(attributes["Attributes"]["RedrivePolicy"])["maxReceiveCount"])
    # The function may have received it before.
    require(received >= most - 1, f"a turn was taken away after {received} receives, not {most}")
    return received


async def refused(deployment: Deployment, _: Subject) -> Figures:
    """Call with each function's own role what the template does not grant it."""
    stack = await deployment.stack()
    table, queue = stack.resources["TaskTable"], stack.resources["OperationsQueue"]
    dead, secret = stack.resources["DeadLetterQueue"], stack.outputs["SigningSecret"]
    keys = stack.outputs["ApiKeys"]
    names = ("ApiRole", "StreamRole", "WorkerRole", "SweeperRole", "PushRole")
    calls: list[tuple[str, str, str, dict[str, Any]]] = [
        *((role, "dynamodb", "scan", {"TableName": table, "Limit": 1}) for role in names),
        *((role, "dynamodb", "delete_table", {"TableName": table}) for role in names),
        *(
            (role, "secretsmanager", "get_secret_value", {"SecretId": secret})
            for role in names
            if role != "PushRole"
        ),
        *(
            (role, "secretsmanager", "get_secret_value", {"SecretId": keys})
            for role in ("WorkerRole", "SweeperRole", "PushRole")
        ),
        *((role, "sqs", "receive_message", {"QueueUrl": queue}) for role in names[:2]),
        *((role, "sqs", "purge_queue", {"QueueUrl": queue}) for role in names),
        ("PushRole", "sqs", "send_message", {"QueueUrl": dead, "MessageBody": "x"}),
        ("ApiRole", "dynamodb", "execute_statement", {"Statement": f'SELECT * FROM "{table}"'}),  # noqa: S608
    ]
    wrong = []
    sessions: dict[str, Account] = {}
    for role, service, operation, params in calls:
        if role not in sessions:
            credentials = await deployment.session(stack.resources[role])
            sessions[role] = Account(stack.region, **deployment.emulator.client(*credentials))
        try:
            await sessions[role].call(service, operation, **params)
        except ERRORS as error:
            if not is_denied(error):
                wrong.append(f"{role} {service}:{operation}: {aws.error_code(error)}")
        else:
            wrong.append(f"{role} {service}:{operation} was allowed")
    require(not wrong, f"not refused: {'; '.join(wrong)}", asked=len(calls))
    return {"asked": len(calls)}


ALARM: Final = {
    "Type": "AWS::CloudWatch::Alarm",
    "Properties": {
        "ComparisonOperator": "GreaterThanThreshold",
        "EvaluationPeriods": 1,
        "Threshold": 1,
        "Metrics": [{"Id": "e", "Expression": "1 + 1"}],
    },
}
API: Final = {
    "Type": "AWS::ApiGateway::RestApi",
    "Properties": {
        "Body": {
            "openapi": "3.0.1",
            "info": {"title": "any", "version": "1"},
            "paths": {"/any": {"x-amazon-apigateway-any-method": {"responses": {}}}},
        }
    },
}
EXPANDED: Final = {
    "Transform": "AWS::Serverless-2016-10-31",
    "Parameters": {"Alias": {"Type": "String", "Default": "one"}},
    "Resources": {
        "It": {
            "Type": "AWS::Serverless::Function",
            "Properties": {
                "AutoPublishAlias": {"Ref": "Alias"},
                "Handler": "index.handler",
                "InlineCode": "handler = None",
                "Runtime": "python3.13",
            },
        }
    },
}
SECRET: Final = {
    "Type": "AWS::SecretsManager::Secret",
    "Properties": {"GenerateSecretString": {"PasswordLength": 64, "ExcludePunctuation": True}},
}
TLS: Final = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    },
}


async def substituted(deployment: Deployment, subject: Subject) -> Figures:
    """Make of each thing that is substituted one as it is written: the emulator must not do it."""
    account, learned = deployment.account, list[str]()

    async def made(name: str, resource: Mapping[str, Any]) -> str:
        return await alone(deployment, subject, name, {"Resources": {"It": resource}})

    if await made("alarm", ALARM):
        learned.append("alarms with metric math")
    nodes = await account.call(
        "apigateway", "get_resources", restApiId=await made("api", API), embed=["methods"]
    )
    if any(node.get("resourceMethods") for node in nodes["items"]):
        learned.append("ANY")
    secret = await account.call(
        "secretsmanager", "get_secret_value", SecretId=await made("secret", SECRET)
    )
    if secret["SecretString"].isalnum():
        learned.append("ExcludePunctuation")
    if not await _refused_without_tls(deployment, subject):
        learned.append("TLS")
    await alone(deployment, subject, "expanded", EXPANDED, Alias="other")
    expanded = await account.call(
        "cloudformation", "list_stack_resources", StackName=f"expanded-{subject.run}"
    )
    names = {it["LogicalResourceId"] for it in expanded["StackResourceSummaries"]}
    require({"ItAliasone", "ItAliasother"} & names, f"an alias is called otherwise: {names}")
    if "ItAliasother" in names:
        learned.append("values of parameters")
    require(not learned, f"take out of template.py: {', '.join(learned)}")
    return {"still needed": len(SUBSTITUTIONS)}


async def _refused_without_tls(deployment: Deployment, subject: Subject) -> bool:
    """Ask the bucket for TLS, and put an object as the worker."""
    stack, call = await deployment.stack(), deployment.account.call
    named = {"Bucket": stack.resources["BlobBucket"]}
    subject.made.note(
        "policy of", named["Bucket"], lambda: call("s3", "delete_bucket_policy", **named)
    )
    await call("s3", "put_bucket_policy", Policy=json.dumps(TLS), **named)
    credentials = await deployment.session(stack.resources["WorkerRole"])
    worker = Account(stack.region, **deployment.emulator.client(*credentials))
    try:
        await worker.call("s3", "put_object", Key=subject.run, Body=b"", **named)
    except ERRORS as error:
        return is_denied(error)
    return False


async def commands(deployment: Deployment, subject: Subject) -> Figures:
    """Ask the commands of operators about a task, and have them delete all that a caller has."""
    task_id = await subject.begin("say")
    await subject.ended(task_id, within_s=60)
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
    return {"listed": len(listed)}


async def _console(deployment: Deployment, path: str) -> str:
    """Return a page of the console."""
    process = await asyncio.create_subprocess_exec(
        ROOT / ".venv" / "bin" / "a2a-serverless",
        *("console", "--stack", deployment.name, "--region", "us-east-1"),
        cwd=ROOT,
        env={**os.environ, **deployment.emulator.environment()},
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


async def scheduled(deployment: Deployment, subject: Subject) -> Figures:
    """Let EventBridge send a message by the code of the page; the rule is fired by hand."""
    (code,) = CODE.findall(pages.section("On a schedule"))
    page: dict[str, Any] = {}
    exec(code, page)  # noqa: S102 - the page's own
    events, daily = deployment.account.client("events"), "rate(1 day)"
    role = "arn:aws:iam::000000000000:role/schedule"
    wired = (events, subject.endpoint, subject.credential, role, json.dumps({"do": "say"}), daily)
    await asyncio.to_thread(page["schedule"], *wired)
    by_hand = json.dumps({"source": ["by-hand"]})
    await deployment.account.call(
        "events", "put_rule", Name="agent", ScheduleExpression=daily, EventPattern=by_hand
    )
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
    return {}


async def quiet(deployment: Deployment, _: Subject) -> Figures:
    """Look for refused calls in all log groups, and in what the web servers have written."""
    account = deployment.account
    lines: list[str] = []
    for group in (await account.call("logs", "describe_log_groups"))["logGroups"]:
        page: dict[str, str] = {}
        while True:
            answer = await account.call(
                "logs", "filter_log_events", logGroupName=group["logGroupName"], **page
            )
            lines += [event["message"] for event in answer["events"]]
            if not (token := answer.get("nextToken")):
                break
            page = {"nextToken": token}
    require(lines, "the functions have logged nothing")
    for log in deployment.door.folder.rglob("*.log"):
        if log.name in {"stream.log", "worker.log"}:
            lines += log.read_text(encoding="utf-8").splitlines()
    # When the exporter is taken away, a grant may go before a function's last start with it; that
    # they have the grant is what `traces` shows.
    found = [line for line in lines if REFUSALS.search(line) and "otel_not_used" not in line]
    require(not found, f"refused: {[REFUSALS.split(line)[-1][:300] for line in found[:3]]}")
    return {"lines": len(lines)}


async def traced(deployment: Deployment, subject: Subject) -> Figures:
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
        async with deployment.changed(OtelEndpoint=taken.url, Settings=all_traces):
            await subject.agent.call("SendMessage", {"message": ordered("say")}, headers)
            way = await subject.until("the trace", look, within_s=60, every_s=0.5)
    require(way == ["invoke_agent", "process", "send", "SendMessage"], f"the trace is {way}")
    return {"spans": len(taken.spans)}


CHECKS: Final = (
    Own("follow-up", "a task that asks for input goes on with the answer", followed_up),
    Own("failed-turn", "a turn that fails in each attempt is tried again, and then fails", retried),
    Own("dead-letter", "a turn that is received too often is a dead letter, and ends", given_up),
    Own("refused-calls", "each role is refused what it has no permission for", refused),
    Own("substitutions", "the emulator still cannot do what is substituted", substituted),
    Own("traces", "functions export one trace, from the request to the attempt", traced),
    Own("commands", "task, tasks, console and purge work on the stack", commands),
    Own("schedule", "a rule of EventBridge opens a task, as the documentation has it", scheduled),
    Own("preflight", "what would be replaced is told, and no change set remains", preflight),
    Own("guided", "sam deploy --guided ends by Enter alone", guided),
    kills.SHORT_CHECK,
    Own("dead-letter-fails", "the sweeper fails a turn without attempts left", failed_by_sweeper),
    *updates.CHECKS,
    *releases.CHECKS,
    *neighbours.CHECKS,
    *restores.CHECKS,
    *documented.CHECKS,
    Own("logs", "no call of a function was refused, by all logs", quiet),
)
"""In the order in which they run: the logs are those of all the others."""
LONG: Final = (kills.LONG_CHECK,)
"""What runs only where it is named."""
