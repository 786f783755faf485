"""What is checked of a stack on the emulator beside the checks of tests/live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from a2a_serverless import aws
from a2a_serverless_tools.console.rendering import BASE
from tests.cloud.deployment import Deployment, run
from tests.cloud.emulator import ROOT
from tests.cloud.template import SUBSTITUTIONS
from tests.live.account import ERRORS, Account, is_denied
from tests.live.findings import Check, Figures, require
from tests.live.stack import first_key
from tests.live.subject import Subject, artifact_text, ordered, state, status_text

COMMAND_S: Final = 120.0
ISSUER: Final = "https://issuer.example.com"
"""An issuer that is never asked: no token of its own is shown."""
REFUSALS: Final = re.compile(r"AccessDenied|not authorized to perform|UnrecognizedClient")
KILLED: Final = (
    "ApiFunction",
    "StreamFunction",
    "WorkerFunction",
    "SweeperFunction",
    "PushFunction",
)
TASKS: Final = 40
AT_ONCE: Final = 4
KILLS: Final = 2
"""Of each function: fewer than the attempts of a turn."""
PAUSE_S: Final = 5.0
UNANSWERED: Final = (httpx.HTTPError, ValueError, LookupError)
"""What a request ends in whose process was killed: no answer, or one of the gateway's own."""


@dataclass(frozen=True)
class Own:
    """A check of a deployment on the emulator; `on` one, it is a check like those of tests/live."""

    name: str
    proves: str
    run: Callable[[Deployment, Subject], Awaitable[Figures]]

    def on(self, deployment: Deployment) -> Check:
        """Return the check of this deployment."""
        return Check(self.name, self.proves, lambda subject: self.run(deployment, subject))


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
    account, stack = deployment.account, await deployment.stack()
    source, queue = stack.resources["WorkerFunctionOperations"], stack.resources["OperationsQueue"]

    async def feed(*, enabled: bool) -> None:
        await account.call("lambda", "update_event_source_mapping", UUID=source, Enabled=enabled)

    subject.made.note("the worker's event source, disabled:", source, lambda: feed(enabled=True))
    await feed(enabled=False)
    task_id = await subject.begin("say")
    received = 0

    async def receive() -> bool | None:
        nonlocal received
        answer = await account.call(
            "sqs", "receive_message", QueueUrl=queue, VisibilityTimeout=0, WaitTimeSeconds=1
        )
        messages = answer.get("Messages", ())
        received += sum(task_id in message["Body"] for message in messages)
        return (received > 0 and not messages) or None

    await subject.until("the dead letter", receive, within_s=60, every_s=0)
    attributes = await account.call(
        "sqs", "get_queue_attributes", QueueUrl=queue, AttributeNames=["RedrivePolicy"]
    )
    most = int(json.loads(attributes["Attributes"]["RedrivePolicy"])["maxReceiveCount"])
    require(received >= most, f"a turn was taken away after {received} receives, not {most}")
    require(state(await subject.task(task_id)) == "SUBMITTED", "the turn has been started")
    await feed(enabled=True)
    task = await subject.ended(task_id, within_s=240, every_s=1)
    require(state(task) == "COMPLETED", f"the task of a dead letter ended as {state(task)}")
    return {"receives": received}


async def refused(deployment: Deployment, _: Subject) -> Figures:
    """Call with each function's own role what the template does not grant it."""
    root, stack = deployment.account, await deployment.stack()
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
            found = await root.call("iam", "get_role", RoleName=stack.resources[role])
            arn = found["Role"]["Arn"]
            issued = await root.call("sts", "assume_role", RoleArn=arn, RoleSessionName="check")
            given = issued["Credentials"]
            options = deployment.emulator.client(
                given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
            )
            sessions[role] = Account(stack.region, **options)
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
SECRET: Final = {
    "Type": "AWS::SecretsManager::Secret",
    "Properties": {"GenerateSecretString": {"PasswordLength": 64, "ExcludePunctuation": True}},
}


async def substituted(deployment: Deployment, subject: Subject) -> Figures:
    """Make of each thing that is substituted one as it is written: the emulator must not do it."""
    account, learned = deployment.account, []

    async def made(name: str, resource: Mapping[str, Any]) -> str:
        """Make a stack of one resource; return its physical id, empty if it cannot be made."""
        stack = f"substituted-{name}-{subject.run}"

        async def undo() -> None:
            await account.call("cloudformation", "delete_stack", StackName=stack)

        subject.made.note("stack", stack, undo)
        body = json.dumps({"Resources": {"It": resource}})
        await account.call(
            "cloudformation",
            "create_stack",
            StackName=stack,
            TemplateBody=body,
        )

        async def look() -> str | None:
            answer = await account.call("cloudformation", "describe_stacks", StackName=stack)
            status = str(answer["Stacks"][0]["StackStatus"])
            return None if status in {"CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"} else status

        if await subject.until(stack, look, within_s=60, every_s=0.2) != "CREATE_COMPLETE":
            return ""
        listed = await account.call("cloudformation", "list_stack_resources", StackName=stack)
        return str(listed["StackResourceSummaries"][0]["PhysicalResourceId"])

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
    require(not learned, f"take out of template.py: {', '.join(learned)}")
    return {"still needed": len(SUBSTITUTIONS)}


async def commands(deployment: Deployment, subject: Subject) -> Figures:
    """Ask the commands of operators about a task, and have them delete all that a caller has."""
    task_id = await subject.begin("say")
    await subject.ended(task_id, within_s=60)
    shown = json.loads(await _command(deployment, "task", task_id, "--json"))
    require(task_id in json.dumps(shown), "task shows another task")
    listed = (await _command(deployment, "tasks", "--user", "default", "--json")).splitlines()
    require(any(task_id in line for line in listed), "tasks does not list the task")
    page = await _console(deployment, f"{BASE}/task/{shown['scope']}/{task_id}")
    require(task_id in page, "the console's page of the task does not name it")
    await _command(deployment, "tasks", "purge", "--user", "default", "--yes", "--settle", "1")
    gone = await subject.http.get(f"/tasks/{task_id}", headers={"A2A-Version": "1.0"})
    require(gone.status_code == httpx.codes.NOT_FOUND, f"a purged task: {gone.status_code}")
    return {"listed": len(listed)}


async def _command(deployment: Deployment, *arguments: str) -> str:
    at = ["--stack", deployment.name, "--region", "us-east-1"]
    command = [str(ROOT / ".venv" / "bin" / "a2a-serverless"), *arguments, *at]
    environment = {**os.environ, **deployment.emulator.environment()}
    return await run(command, environment, within_s=COMMAND_S)


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


async def killed(deployment: Deployment, subject: Subject) -> Figures:
    """Kill a process of each function in turn, and again, while tasks are sent and run."""
    counts = dict.fromkeys(KILLED, 0)
    stack = await deployment.stack()
    logical = {stack.resources[name]: name for name in KILLED}
    places = asyncio.Semaphore(AT_ONCE)

    async def task(number: int) -> tuple[str, dict[str, Any]]:
        kind = ("steps", "say", "fail")[number % 3]
        more = {"count": 3, "gap_s": 0.5} if kind == "steps" else {}
        message = ordered(kind, **more)
        async with places:
            task_id = await _sent(subject, message)
        return kind, await _ended(subject, task_id)

    async def kill() -> None:
        """Kill a process of one function after the other, where it has one."""
        for name in KILLED * KILLS:
            await asyncio.sleep(PAUSE_S)
            found = deployment.emulator.functions().items()
            ids = [pid for pid, physical in found if logical.get(physical) == name]
            ids += deployment.door.processes if name == "StreamFunction" else []
            for pid in ids[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    counts[name] += 1

    killing = asyncio.ensure_future(kill())
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(task(number)) for number in range(TASKS)]
    finally:
        killing.cancel()
    ended = [each.result() for each in running]
    wrong = [
        f"{kind} {it['id']} {state(it)} {artifact_text(it)!r}"
        for kind, it in ended
        if not _is_right(kind, it)
    ]
    require(not wrong, f"tasks that did not end right: {wrong}", kills=counts)
    require(counts["WorkerFunction"], "no worker was killed", kills=counts)
    return {"tasks": len(ended), "kills": counts}


async def _sent(subject: Subject, message: Mapping[str, Any]) -> str:
    """Send a message until it is taken: its id makes that one task, however often it is sent."""

    async def send() -> str | None:
        with contextlib.suppress(*UNANSWERED):
            answer = await subject.agent.call(
                "SendMessage",
                {"message": dict(message), "configuration": {"returnImmediately": True}},
            )
            if "task" in answer.result:
                return str(answer.task["id"])
        return None

    return await subject.until("an answer", send, within_s=300, every_s=1)


async def _ended(subject: Subject, task_id: str) -> dict[str, Any]:
    """Wait for a task's end, whatever becomes of the processes that are asked."""

    async def look() -> dict[str, Any] | None:
        with contextlib.suppress(*UNANSWERED):
            task = await subject.task(task_id)
            return task if state(task) in {"COMPLETED", "FAILED"} else None
        return None

    return await subject.until(f"the end of {task_id}", look, within_s=600, every_s=2)


def _is_right(kind: str, task: dict[str, Any]) -> bool:
    if kind == "fail":
        return state(task) == "FAILED"
    if kind == "say":
        return state(task) == "COMPLETED" and bool(artifact_text(task))
    numbers = [line.split()[0] for line in artifact_text(task).splitlines()]
    return state(task) == "COMPLETED" and numbers == ["0", "1", "2"]


async def switched(deployment: Deployment, subject: Subject) -> Figures:
    """Update the stack to Auth oidc and back."""
    before = await first_key(deployment.account, await deployment.stack())
    task_id = await subject.begin("say")
    await subject.ended(task_id, within_s=60)
    path, version = f"/tasks/{task_id}", {"A2A-Version": "1.0"}
    try:
        await deployment.deploy(Auth="oidc", OidcIssuer=ISSUER, OidcAudience="agent")
        away = await subject.http.get(path, headers=version)
    finally:
        await deployment.deploy(Auth="api-key", OidcIssuer="", OidcAudience="")
    require(away.status_code == 401, f"under oidc the key was answered {away.status_code}")
    after = await first_key(deployment.account, await deployment.stack())
    require(after == before, "the key is another one")
    back = await subject.http.get(path, headers=version)
    require(back.is_success, f"the task was answered {back.status_code}")
    return {"under oidc": away.status_code, "back": back.status_code}


async def shared(deployment: Deployment, subject: Subject) -> Figures:
    """Update the stack to shared turns, and have ten tasks run at once."""
    await deployment.deploy(
        WorkerTurns="10", WorkerConcurrency="2", WorkerTimeout="120", TurnTimeout="45"
    )
    try:
        ids = [await subject.begin("steps", count=10, gap_s=1) for _ in range(10)]
        tasks = [await subject.ended(task_id, within_s=300) for task_id in ids]
    finally:
        await deployment.deploy(WorkerTurns="1", WorkerConcurrency="10")
    wrong = [it["id"] for it in tasks if state(it) != "COMPLETED"]
    require(not wrong, f"tasks that did not complete: {wrong}")
    processes = {status_text(it) for it in tasks}
    require(len(processes) <= 2, f"ten turns ran in {len(processes)} processes")
    return {"tasks": len(tasks), "processes": len(processes)}


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
    log = deployment.door.folder / "stream.log"
    lines += log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = [line for line in lines if REFUSALS.search(line)]
    require(not found, f"refused: {[REFUSALS.split(line)[-1][:300] for line in found[:3]]}")
    return {"lines": len(lines)}


CHECKS: Final = (
    Own("follow-up", "a task that asks for input goes on with the answer", followed_up),
    Own("failed-turn", "a turn that fails in each attempt is tried again, and then fails", retried),
    Own("dead-letter", "a turn that is received too often is a dead letter, and ends", given_up),
    Own("refused-calls", "each role is refused what it has no permission for", refused),
    Own("substitutions", "the emulator still cannot do what is substituted", substituted),
    Own("commands", "task, tasks, console and purge work on the stack", commands),
    Own("kills", f"{TASKS} tasks end right while processes of all functions are killed", killed),
    Own("auth-switch", "the same key opens the same task after Auth has gone and come", switched),
    Own("shared-turns", "with WorkerTurns=10 ten tasks share two processes", shared),
    Own("logs", "no call of a function was refused, by all logs", quiet),
)
"""In the order in which they run: the logs are those of all the others."""
