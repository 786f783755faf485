"""Checks that need a stack: each passes on a right account, and fails on a broken one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.live import bill, deployments, gateway, permissions, releases
from tests.live.checks import CHECKS
from tests.live.findings import Check, Finding, Outcome
from tests.live.runner import run
from tests.live.subject import Consent, Subject
from tests.unit.live.scripted_agent import ScriptedAgent, completed, failed
from tests.unit.live.scripted_aws import PHYSICAL, Refusal, ScriptedAws
from tests.unit.live.ways import finding

Open = Callable[..., Any]


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


def says(found: Finding, outcome: Outcome, part: str = "") -> None:
    assert found.outcome is outcome, found.says
    assert part in found.says


# -- time-out kill ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "passed_s", "part"),
    [
        (completed("the attempt that ends"), 100, ""),
        (completed("the attempt that is killedthe attempt that ends"), 100, "has stayed"),
        (completed("the attempt that ends"), 0, "before its function could be killed"),
        (failed(), 100, "ended as FAILED"),
    ],
)
async def test_a_turn_that_is_killed(
    deployed: Open, end: dict[str, Any], passed_s: float, part: str
) -> None:
    """The next attempt ends it, nothing of the dead one stays, and it did outlive its function."""
    subject: Subject

    def order(told: dict[str, Any]) -> dict[str, Any]:
        assert told["do"] == "outlive"
        subject.clock.move(passed_s)  # type: ignore[attr-defined]
        return end

    subject = await deployed(ScriptedAgent(order))
    found = await finding(subject, check("timeout-kill"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({"WorkerTimeout": "900"}, "deploy with WorkerTimeout=60"),
        ({"MaxAttempts": "1"}, "MaxAttempts is 1"),
    ],
)
async def test_a_stack_that_is_not_waited_for(
    deployed: Open, parameters: dict[str, str], part: str
) -> None:
    """A stack on which the kill takes too long, or is the last attempt, says what to deploy."""
    found = await finding(await deployed(ScriptedAgent(), **parameters), check("timeout-kill"))
    says(found, Outcome.NOT_POSSIBLE, part)


async def test_a_turn_that_never_comes_back(deployed: Open) -> None:
    """A turn that is still at work after two timeouts and the redelivery fails."""
    working = {"status": {"state": "TASK_STATE_WORKING"}}
    subject = await deployed(ScriptedAgent(lambda _: working))
    says(await finding(subject, check("timeout-kill")), Outcome.FAILED, "did not come within")


# -- permissions -----------------------------------------------------------------------------------


def roles(aws: ScriptedAws, *, but: tuple[str, str] | None = None) -> None:
    """Let IAM decide as the template does, but for one role and action."""
    allowed = {
        (rule.role, rule.action, rule.resource) for rule in permissions.RULES if rule.allowed
    }

    def role(params: dict[str, Any]) -> dict[str, Any]:
        arn = f"arn:aws:iam::123456789012:role/{params['RoleName']}"
        return {"Role": {"Arn": arn}}

    def decide(params: dict[str, Any]) -> dict[str, Any]:
        logical = params["PolicySourceArn"].rpartition("live-")[2]
        (action,), (arn,) = params["ActionNames"], params["ResourceArns"]
        assert arn.startswith("arn:aws:")
        is_allowed = "index" not in arn and any(
            (logical, action) == rule[:2] and PHYSICAL[rule[2]] in f"{arn}{PHYSICAL[rule[2]]}"
            for rule in allowed
        )
        if (logical, action) == but:
            is_allowed = not is_allowed
        return {
            "EvaluationResults": [
                {
                    "EvalActionName": action,
                    "EvalDecision": "allowed" if is_allowed else "implicitDeny",
                }
            ]
        }

    aws.answers |= {"iam.GetRole": role, "iam.SimulatePrincipalPolicy": decide}


async def test_roles_that_deny(deployed: Open, aws: ScriptedAws) -> None:
    """The check asks IAM what each role may and may not do, with the stack's own names."""
    roles(aws)
    found = await finding(await deployed(), check("roles-simulated"))
    says(found, Outcome.PASSED)
    assert found.figures["asked"] == len(permissions.RULES)


@pytest.mark.parametrize(
    "wrong",
    [
        ("WorkerRole", "secretsmanager:GetSecretValue"),
        ("ApiRole", "dynamodb:Scan"),
        ("PushRole", "dynamodb:PutItem"),
        ("SweeperRole", "dynamodb:Query"),
    ],
)
async def test_a_role_that_allows(deployed: Open, aws: ScriptedAws, wrong: tuple[str, str]) -> None:
    """The check fails if IAM decides otherwise than the template, and names the decision."""
    roles(aws, but=wrong)
    found = await finding(await deployed(), check("roles-simulated"))
    says(found, Outcome.FAILED, " ".join(wrong))


async def test_iam_may_not_be_asked(deployed: Open, aws: ScriptedAws) -> None:
    """Credentials without the simulation make the check impossible, not failed."""
    roles(aws)
    aws.answers["iam.SimulatePrincipalPolicy"] = Refusal("AccessDenied")
    says(await finding(await deployed(), check("roles-simulated")), Outcome.NOT_POSSIBLE, "may not")


@pytest.mark.parametrize(
    ("end", "part"),
    [
        (completed("AccessDeniedException"), ""),
        (completed("allowed"), "was: allowed"),
        (failed(), "ended as FAILED"),
    ],
)
async def test_a_call_of_the_workers_own(deployed: Open, end: dict[str, Any], part: str) -> None:
    """A Scan with the worker's role has to be refused by DynamoDB."""
    found = await finding(await deployed(ScriptedAgent(lambda _: end)), check("role-refused"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)


# -- things that are made --------------------------------------------------------------------------


def workshop(aws: ScriptedAws, *taken: dict[str, Any]) -> None:
    """Let everything be made and undone; the queues then give these bodies."""
    waiting = [json.dumps(one) for one in taken]

    def url(params: dict[str, Any]) -> dict[str, Any]:
        return {"QueueUrl": f"https://sqs.test/{params['QueueName']}"}

    def receive(_: dict[str, Any]) -> dict[str, Any]:
        messages = [{"Body": body, "ReceiptHandle": "handle"} for body in waiting]
        waiting.clear()
        return {"Messages": messages}

    aws.answers |= {
        "sqs.CreateQueue": url,
        "sqs.GetQueueUrl": url,
        "sqs.GetQueueAttributes": {"Attributes": {"QueueArn": "arn:aws:sqs:eu-central-1:1:queue"}},
        "sqs.DeleteQueue": {},
        "sqs.SendMessage": {},
        "sqs.ReceiveMessage": receive,
        "sqs.DeleteMessage": {},
        "iam.CreateRole": {"Role": {"Arn": "arn:aws:iam::123456789012:role/live"}},
        "iam.PutRolePolicy": {},
        "iam.DeleteRolePolicy": {},
        "iam.DeleteRole": {},
        "lambda.CreateFunction": {},
        "lambda.GetFunctionConfiguration": {"State": "Active"},
        "lambda.DeleteFunction": {},
        "lambda.CreateEventSourceMapping": {"UUID": "0" * 36},
        "lambda.GetEventSourceMapping": {"State": "Enabled"},
        "lambda.DeleteEventSourceMapping": {},
        "lambda.AddPermission": {},
        "lambda.CreateFunctionUrlConfig": {"FunctionUrl": "https://hook.lambda-url.test/"},
    }


UNDONE_FIFO = [
    "lambda.DeleteEventSourceMapping",
    "lambda.DeleteFunction",
    "iam.DeleteRolePolicy",
    "iam.DeleteRole",
    "sqs.GetQueueUrl",
    "sqs.DeleteQueue",
    "sqs.GetQueueUrl",
    "sqs.DeleteQueue",
]

FIRST = {"message": "first", "began": 10.0, "deleted": 10.1, "ended": 20.1}


@pytest.mark.parametrize(
    ("began", "held", "part"),
    [
        (10.4, "False", ""),
        (20.2, "True", ""),
        (10.05, "None", "before the first was deleted"),
        (None, "None", "did not come within 120 s"),
    ],
)
async def test_a_fifo_source(
    deployed: Open, aws: ScriptedAws, began: float | None, held: str, part: str
) -> None:
    """Either answer passes the check; a group out of order, or one that stands still, fails it."""
    second = [] if began is None else [{"message": "second", "began": began, "ended": began}]
    workshop(aws, FIRST, *second)
    found = await finding(await deployed(), check("fifo-early-delete"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)
    assert str(found.figures.get("held until the invocation returned")) == held
    assert aws.called[-8:] == UNDONE_FIFO


@pytest.mark.parametrize("operation", ["CreateFunction", "CreateEventSourceMapping"])
@pytest.mark.parametrize(("unknown", "outcome"), [(2, Outcome.PASSED), (99, Outcome.FAILED)])
async def test_a_role_that_is_not_known_yet(
    deployed: Open, aws: ScriptedAws, operation: str, unknown: int, outcome: Outcome
) -> None:
    """Lambda takes a role a moment after it was made; after a minute it is refused for good."""
    workshop(aws, FIRST, {"message": "second", "began": 20.2, "ended": 20.2})
    tries: list[dict[str, Any]] = []

    def create(params: dict[str, Any]) -> dict[str, Any] | Refusal:
        tries.append(params)
        is_known = len(tries) > unknown
        return {"UUID": "0" * 36} if is_known else Refusal("InvalidParameterValueException")

    aws.answers[f"lambda.{operation}"] = create
    found = await finding(await deployed(), check("fifo-early-delete"))
    says(found, outcome, "" if outcome is Outcome.PASSED else "InvalidParameterValueException")
    assert len(tries) == min(unknown + 1, 31)


async def test_nothing_may_be_made(deployed: Open, aws: ScriptedAws) -> None:
    """Without the permission the check is not possible, and what was made before is removed."""
    workshop(aws)
    aws.answers["iam.CreateRole"] = Refusal("AccessDenied")
    aws.answers["iam.DeleteRole"] = Refusal("NoSuchEntity")
    found = await finding(await deployed(), check("fifo-early-delete"))
    says(found, Outcome.NOT_POSSIBLE, "may not create_role of iam")
    assert aws.called.count("sqs.DeleteQueue") == 2


KEY = ec.generate_private_key(ec.SECP256R1())


def notification(token: str, task_id: str, config_id: str) -> dict[str, Any]:
    """What the receiver on AWS keeps of a notification; that of `hook` is a right one."""
    body = b'{"statusUpdate": {}}'
    now = int(time.time())
    claims = {
        "iss": "http://agent.test/a2a",
        "aud": "https://hook.lambda-url.test",
        "sub": task_id,
        "iat": now,
        "exp": now + 300,
        "jti": "1",
        "event_id": "1",
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "config_id": config_id,
        "config_hmac": hmac.new(token.encode(), b"hook", hashlib.sha256).hexdigest(),
    }
    signature = jwt.encode(claims, KEY, "ES256", headers={"kid": "k"})
    return {
        "headers": {
            "x-a2a-event-id": "1",
            "x-a2a-notification-token": token,
            "x-a2a-signature": signature,
        },
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


@pytest.mark.parametrize(
    ("task_id", "config_id", "part"),
    [
        ("task-0", "hook", ""),
        ("task-9", "hook", "another task"),
        ("task-0", "other", "another configuration"),
    ],
)
async def test_a_webhook_on_aws(
    deployed: Open, aws: ScriptedAws, task_id: str, config_id: str, part: str
) -> None:
    """The receiver is a function with a URL; it is checked like one here, and removed."""
    key = {**jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}
    probes = iter([403, 502])

    def others(request: httpx.Request) -> httpx.Response:
        if request.url.host == "hook.lambda-url.test":
            assert not agent.bodies, "the agent was told of a receiver that does not answer yet"
            return httpx.Response(next(probes, 200))
        return httpx.Response(200, json={"keys": [key]})

    agent = ScriptedAgent(lambda _: completed(""), others)
    workshop(aws)
    probe = {"headers": {"host": "hook"}, "body": None, "isBase64Encoded": False}

    def receive(_: dict[str, Any]) -> dict[str, Any]:
        config = agent.bodies[0]["configuration"]["taskPushNotificationConfig"]
        assert config["url"] == "https://hook.lambda-url.test/"
        kept = [probe, notification(config["token"], task_id, config_id)]
        return {"Messages": [{"Body": json.dumps(k), "ReceiptHandle": "handle"} for k in kept]}

    aws.answers["sqs.ReceiveMessage"] = receive
    subject = await deployed(agent)
    found = await finding(subject, check("webhook"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)
    assert aws.called[-5:] == [
        "lambda.DeleteFunction",
        "iam.DeleteRolePolicy",
        "iam.DeleteRole",
        "sqs.GetQueueUrl",
        "sqs.DeleteQueue",
    ]
    assert all("a2a-live-r1-webhook" in name for name in subject.made.names)


# -- API Gateway -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "header", "part"),
    [
        (401, "x-amzn-Remapped-WWW-Authenticate", ""),
        (401, "WWW-Authenticate", "the challenge comes as"),
        (200, "x-amzn-Remapped-WWW-Authenticate", "a stranger was answered 200"),
    ],
)
async def test_the_renamed_header(deployed: Open, status: int, header: str, part: str) -> None:
    """A challenge under another name than the documented one fails."""
    agent = ScriptedAgent(None, lambda _: httpx.Response(status, headers={header: "ApiKey"}))
    found = await finding(await deployed(agent), check("renamed-header"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)


def shaped(status: int, *, retry_after: str | None = "1", code: int | None = None) -> Any:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    body = {"error": {"code": status if code is None else code}}
    return lambda _: httpx.Response(status, headers=headers, json=body)


ANSWERS = [
    ({}, ""),
    ({"retry_after": None}, "no Retry-After"),
    ({"code": 1}, "not in the form"),
]


@pytest.mark.parametrize(("fault", "part"), ANSWERS)
async def test_a_throttled_answer(
    deployed: Open, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], part: str
) -> None:
    """429 has Retry-After and the form of the application's errors."""
    monkeypatch.setattr(gateway, "BURST", 5)
    agent = ScriptedAgent(None, shaped(429, **fault))
    subject = await deployed(agent, consent=Consent(burst=True), ThrottleBurst="1")
    found = await finding(subject, check("throttled"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)


async def test_an_api_that_does_not_throttle(
    deployed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of which everything is answered fails."""
    monkeypatch.setattr(gateway, "BURST", 5)
    agent = ScriptedAgent(None, lambda _: httpx.Response(200))
    subject = await deployed(agent, consent=Consent(burst=True), ThrottleBurst="1")
    says(await finding(subject, check("throttled")), Outcome.FAILED, "none of 5 requests")


@pytest.mark.parametrize(("fault", "part"), [*ANSWERS, ({"status": 500}, "the answer is 500")])
@pytest.mark.parametrize("reserved", [None, 7])
async def test_a_busy_function(
    deployed: Open,
    aws: ScriptedAws,
    fault: dict[str, Any],
    part: str,
    reserved: int | None,
) -> None:
    """Without concurrency: 503, in its form. What was reserved before is reserved again."""
    found_before = {} if reserved is None else {"ReservedConcurrentExecutions": reserved}
    aws.answers |= {
        "lambda.GetFunctionConcurrency": found_before,
        "lambda.PutFunctionConcurrency": {},
        "lambda.DeleteFunctionConcurrency": {},
    }
    refusal = shaped(**{"status": 503, **fault})

    def answer(request: httpx.Request) -> httpx.Response:
        is_out = (
            aws.called[-1] == "lambda.PutFunctionConcurrency"
            and aws.calls[-1][1]["ReservedConcurrentExecutions"] == 0
        )
        response: httpx.Response = refusal(request) if is_out else httpx.Response(200)
        return response

    agent = ScriptedAgent(None, answer)
    subject = await deployed(agent, consent=Consent(changes=True))
    says(await finding(subject, check("busy")), Outcome.FAILED if part else Outcome.PASSED, part)
    operation, params = aws.calls[-1]
    if reserved is None:
        assert operation == "lambda.DeleteFunctionConcurrency"
    else:
        assert params["ReservedConcurrentExecutions"] == reserved


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("throttled", "--burst"),
        ("busy", "--allow-changes"),
        ("alarms", "--allow-changes"),
        ("bad-version", "--allow-changes"),
        ("stream-release", "--allow-changes"),
        ("rollout", "--allow-changes"),
        ("second-deploy", "--allow-changes"),
        ("auth-move", "--allow-changes"),
    ],
)
async def test_what_needs_consent(deployed: Open, aws: ScriptedAws, name: str, flag: str) -> None:
    """Without its flag a check that costs or changes something does nothing, and names the flag."""
    subject = await deployed(ScriptedAgent())
    says(await finding(subject, check(name)), Outcome.NOT_POSSIBLE, f"needs {flag}")
    assert (aws.calls, subject.requests) == ([], 0)


# -- a second deployment ---------------------------------------------------------------------------

WHOLE = "".join(f"{number} 0.0\n" for number in range(deployments.STEPS))


@pytest.mark.parametrize(
    ("last", "process", "part"),
    [
        (WHOLE, "new", ""),
        (WHOLE.replace("2 0.0\n", ""), "new", "did not end whole: ['task-29']"),
        (WHOLE + "4 0.0\n", "new", "did not end whole"),
        (WHOLE, "old", "nothing changed"),
    ],
    ids=["whole", "lost", "repeated", "unchanged"],
)
async def test_tasks_over_a_change(
    deployed: Open,
    aws: ScriptedAws,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    process: str,
    part: str,
) -> None:
    """A lost or repeated step fails, and so does a change that replaced nothing; it is undone."""
    monkeypatch.setattr(deployments, "TASKS", 30)
    functions = Functions(aws)
    ended = iter(range(30))

    def end(_: dict[str, Any]) -> dict[str, Any]:
        number = next(ended)
        text = last if number == 29 else WHOLE
        return completed(text, said="old" if number < 20 else process)

    subject = await deployed(ScriptedAgent(end), consent=Consent(changes=True))
    found = await finding(subject, check("second-deploy"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)
    changed = {PHYSICAL[logical] for logical in deployments.CHANGED}
    assert functions.variables == {name: {"A2A_AUTH": "api-key"} for name in changed}
    assert functions.behind == dict.fromkeys(changed, "1")
    assert functions.taken == changed
    assert functions.published == set()
    assert functions.changing == set()


# -- versions and rollouts -------------------------------------------------------------------------


class Functions:
    """The stack's functions: variables, versions, and what is behind their aliases."""

    def __init__(self, aws: ScriptedAws) -> None:
        self.variables: dict[str, dict[str, str]] = {}
        self.behind: dict[str, str] = {}
        self.taken: set[str] = set()
        self.published: set[str] = set()
        self.weights: dict[str, float] = {}
        self._busy: dict[str, bool] = {}
        """Functions that are being changed, until that was looked at."""
        aws.answers |= {
            "lambda.GetFunctionConfiguration": self._read,
            "lambda.UpdateFunctionConfiguration": self._update,
            "lambda.GetAlias": lambda it: {
                "FunctionVersion": self.behind.get(it["FunctionName"], "1"),
                "RoutingConfig": {"AdditionalVersionWeights": self.weights},
            },
            "lambda.PublishVersion": self._publish,
            "lambda.UpdateAlias": self._move,
            "lambda.DeleteFunction": self._delete,
        }

    @property
    def has_bad(self) -> bool:
        """Whether the bad version is behind the worker's alias."""
        return self.behind.get(PHYSICAL["WorkerFunction"]) == "2"

    def _read(self, params: dict[str, Any]) -> dict[str, Any]:
        is_busy = self._busy.pop(params["FunctionName"], False)
        return {
            "Environment": {"Variables": {"A2A_AUTH": "api-key"}},
            "LastUpdateStatus": "InProgress" if is_busy else "Successful",
            "State": "Active",
        }

    @property
    def changing(self) -> set[str]:
        """The functions whose change was not waited for."""
        return set(self._busy)

    def _update(self, params: dict[str, Any]) -> dict[str, Any]:
        assert params["FunctionName"] not in self._busy, "Lambda refuses it: an update goes on"
        self._busy[params["FunctionName"]] = True
        self.variables[params["FunctionName"]] = params["Environment"]["Variables"]
        return {}

    def _publish(self, params: dict[str, Any]) -> dict[str, Any]:
        assert len(self.variables[params["FunctionName"]]) == 2
        self.published.add(params["FunctionName"])
        return {"Version": "2"}

    def _move(self, params: dict[str, Any]) -> dict[str, Any]:
        self.behind[params["FunctionName"]] = params["FunctionVersion"]
        if "RoutingConfig" in params:
            self.weights = params["RoutingConfig"]["AdditionalVersionWeights"]
        if params["FunctionVersion"] == "2":
            self.taken.add(params["FunctionName"])
        return {}

    def _delete(self, params: dict[str, Any]) -> dict[str, Any] | Refusal:
        if params["Qualifier"] in self.weights:
            return Refusal("ResourceConflictException", "an alias references it")
        assert (params["Qualifier"], self.behind[params["FunctionName"]]) == ("2", "1")
        self.published.remove(params["FunctionName"])
        return {}


TOLD = "".join(f"{number} 0.0\n" for number in range(releases.STEPS))


class Late:
    """A stream of a task, and of its steps after some looks at others: its worker starts later."""

    def __init__(self, steps: str) -> None:
        self._steps, self.has_begun = steps, False

    async def stream(self) -> AsyncIterator[bytes]:
        for text in ("", self._steps):
            self.has_begun = bool(text)
            event = {"task": {"artifacts": [{"parts": [{"text": text}]}]}}
            yield f"data: {json.dumps(event)}\n\n".encode()
            for _ in range(50):
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        ("", ""),
        ("lost", "the turn that ran ended as COMPLETED with the steps"),
        ("again", "the turn that ran began again"),
        ("streamed", "the steps of the stream are"),
        ("asleep", "turns that did not complete: ['asleep']"),
        ("late", "turns that did not complete: ['late']"),
        ("early", "had ended before the swap back"),
        ("good", "a turn on the bad version did not come"),
    ],
)
async def test_turns_over_a_bad_version(
    deployed: Open, aws: ScriptedAws, broken: str, part: str
) -> None:
    """A turn in flight that is lost, cut or begun again fails, and so does a bad version's absence.

    Whatever is found, the former version is behind the alias again, and the bad one is deleted.
    """
    functions = Functions(aws)
    asked_again = False

    def running() -> dict[str, Any]:
        if not functions.taken or (functions.has_bad and broken != "early"):
            return completed(TOLD[:12]) | {"status": {"state": "TASK_STATE_WORKING"}}
        told = {"lost": TOLD.replace("7 0.0\n", ""), "again": TOLD.replace("0 0.0", "0 1.0", 1)}
        return completed(told.get(broken, TOLD))

    def come_to(do: str) -> dict[str, Any]:
        """What an order has come to by now."""
        if do == "steps":
            return running()
        if do == "nap" and not functions.taken:
            return {"status": {"state": "TASK_STATE_WORKING"}}
        if do == "ask" and not asked_again:
            return {"status": {"state": "TASK_STATE_INPUT_REQUIRED"}, "contextId": "c"}
        fails = {"nap": broken == "asleep", "say": functions.has_bad and broken != "good"}
        was_bad = do == "say" and broken == "late" and bool(functions.taken)
        return failed() if fails.get(do) or was_bad else completed("")

    def end(order: dict[str, Any]) -> dict[str, Any]:
        return {"do": order["do"], **come_to(order["do"])}

    agent = ScriptedAgent(end)
    told = TOLD.replace("7 0.0\n", "") if broken == "streamed" else TOLD
    late = Late(told)

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked_again
        if request.url.path.endswith("/message:stream"):
            kind = {"content-type": "text/event-stream"}
            return httpx.Response(200, headers=kind, content=late.stream())
        assert late.has_begun or not functions.taken, "the streamed turn begins on the bad version"
        asked_again |= b"taskId" in request.content
        for task in agent.tasks.values():
            task.update(come_to(task["do"]))
        return agent(request)

    subject = await deployed(answer, consent=Consent(changes=True))
    found = await finding(subject, check("bad-version"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)
    worker = PHYSICAL["WorkerFunction"]
    assert functions.taken == {worker}
    assert functions.behind == {worker: "1"}
    assert functions.variables == {worker: {"A2A_AUTH": "api-key"}}
    assert functions.published == set()


WATCHES = {name: name for name in ("AgentNotLoadedAlarm", "FailedTasksAlarm")}


@pytest.mark.parametrize(
    ("rings", "part"),
    [
        ({"AgentNotLoadedAlarm"}, ""),
        (set(), "AgentNotLoadedAlarm did not come within 600 s"),
        ({*WATCHES}, "one caller rang FailedTasksAlarm"),
    ],
)
async def test_alarms_of_a_bad_version(
    deployed: Open, aws: ScriptedAws, rings: set[str], part: str
) -> None:
    """An alarm that does not ring for its cause fails, and so does one that one caller has rung."""
    functions = Functions(aws)

    def history(params: dict[str, Any]) -> dict[str, Any]:
        to = "ALARM" if params["AlarmName"] in rings and functions.taken else "OK"
        return {
            "AlarmHistoryItems": [{"HistoryData": json.dumps({"newState": {"stateValue": to}})}]
        }

    states = [{"AlarmName": "odd", "StateValue": "INSUFFICIENT_DATA"}]
    aws.answers |= {
        "cloudwatch.DescribeAlarmHistory": history,
        "cloudwatch.DescribeAlarms": {"MetricAlarms": states},
    }
    agent = ScriptedAgent(lambda _: failed() if functions.has_bad else completed(""))
    subject = await deployed(agent, consent=Consent(changes=True))
    subject.stack = replace(subject.stack, resources={**PHYSICAL, **WATCHES})
    found = await finding(subject, check("alarms"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)
    assert found.figures.get("without data", ["odd"]) == ["odd"]
    assert functions.behind == {PHYSICAL["WorkerFunction"]: "1"}
    assert functions.published == set()


async def test_alarms_of_one_caller_are_not_judged(deployed: Open, aws: ScriptedAws) -> None:
    """Where one caller rings them by choice nothing is changed, and the parameter is named."""
    subject = await deployed(ScriptedAgent(), consent=Consent(changes=True), AlarmCallers="1")
    says(await finding(subject, check("alarms")), Outcome.NOT_POSSIBLE, "AlarmCallers=2")
    assert aws.calls == []


class Streams:
    """StreamFunction, whose alias decides which version answers, with what is broken of it."""

    def __init__(self, functions: Functions, broken: str) -> None:
        self._functions, self._broken = functions, broken
        self._opened, self._resumed = 0, asyncio.Event()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/message:stream"):
            self._opened += 1
            return self._stream(self._steps(is_cut=self._opened == 2))
        if request.url.path.endswith(":subscribe"):
            self._resumed.set()
            last = int(request.headers["last-event-id"])
            missed = {"lost": 1, "doubled": -1}.get(self._broken, 0)
            told = (self._event(number) for number in range(last + missed, releases.STEPS))
            return self._stream(self._all(told))
        if request.method == "GET":
            end = "FAILED" if self._broken == "failed" else "COMPLETED"
            return httpx.Response(200, json={"status": {"state": f"TASK_STATE_{end}"}})
        refused = self._is_newer and self._broken != "old"
        body = {"error": {"code": -32602, "message": "parts"}} if refused else {"result": {}}
        task = {} if refused else {"result": {"task": {"id": "other"}}}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 7, **body, **task})

    @property
    def _is_newer(self) -> bool:
        return self._functions.behind.get(PHYSICAL["StreamFunction"]) == "2"

    def _stream(self, content: AsyncIterator[bytes]) -> httpx.Response:
        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, content=content)

    @staticmethod
    def _event(number: int) -> bytes:
        """The step of a number, whose event's id is one more; -1: the task's beginning."""
        artifact = {"artifact": {"parts": [{"text": f"{number} 0.0"}]}}
        event = {"artifactUpdate": artifact} if number >= 0 else {"task": {"id": "task-1"}}
        return f"id: {number + 1}\ndata: {json.dumps(event)}\n\n".encode()

    async def _all(self, told: Iterable[bytes]) -> AsyncIterator[bytes]:
        yield b'data: {"task": {"id": "task-1", "artifacts": [{"parts": [{"text": "0 0.0"}]}]}}\n\n'
        for event in told:
            yield event

    async def _steps(self, *, is_cut: bool) -> AsyncIterator[bytes]:
        """Tell five steps; the others once the other stream goes on, and never where it is cut."""
        for number in range(-1, 5):
            yield self._event(number)
        if self._broken != "early":
            await (asyncio.Event() if is_cut else self._resumed).wait()
        for number in range(5, releases.STEPS - (self._broken == "ended")):
            yield self._event(number)


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        ("", ""),
        ("lost", "over the cut the steps are [0, 1, 2, 3, 4, 6"),
        ("doubled", "over the cut the steps are [0, 1, 2, 3, 4, 4"),
        ("ended", "the steps of the open stream are"),
        ("failed", "the task of the cut stream is FAILED"),
        ("old", "the new version did not come"),
        ("early", "a stream had ended before the new version answered"),
    ],
)
async def test_streams_over_a_release(
    deployed: Open, aws: ScriptedAws, broken: str, part: str
) -> None:
    """A stream that ends with its version, and a cut that loses or doubles an event, are found."""
    functions = Functions(aws)
    subject = await deployed(Streams(functions, broken), consent=Consent(changes=True))
    says(
        await finding(subject, check("stream-release")),
        Outcome.FAILED if part else Outcome.PASSED,
        part,
    )
    stream = PHYSICAL["StreamFunction"]
    assert functions.behind == {stream: "1"}
    assert functions.variables == {stream: {"A2A_AUTH": "api-key"}}
    assert functions.published == set()


@pytest.mark.parametrize(
    ("status", "behind", "after", "code", "part"),
    [
        ("Stopped", "1", "COMPLETED", "ALARM_ACTIVE", ""),
        ("Failed", "1", "COMPLETED", "ALARM_ACTIVE", ""),
        ("Succeeded", "2", "FAILED", "", "no alarm has stopped it"),
        ("Failed", "1", "COMPLETED", "IAM_ROLE_PERMISSIONS", "no alarm has stopped it: it Failed"),
        ("Stopped", "2", "COMPLETED", "ALARM_ACTIVE", "the former version behind the alias did"),
        ("Stopped", "1", "FAILED", "ALARM_ACTIVE", "after the rollback a task ended as FAILED"),
        ("InProgress", "1", "COMPLETED", "", "the rollback did not come"),
    ],
)
async def test_a_rollout_that_alarms_stop(
    deployed: Open, aws: ScriptedAws, status: str, behind: str, after: str, code: str, part: str
) -> None:
    """A rollout that goes on, ends without an alarm, or leaves the bad version, fails.

    One that still goes on is stopped, and so is what it leads of the calls to the bad version.
    """
    functions = Functions(aws)
    asked: list[dict[str, Any]] = []
    info: dict[str, Any] = {"status": status, "errorInformation": {"code": code} if code else {}}

    def create(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        functions.behind[PHYSICAL["WorkerFunction"]] = behind
        functions.weights = {"2": 0.1} if status == "InProgress" else {}
        return {"deploymentId": "d-1"}

    def stop(_: dict[str, Any]) -> dict[str, Any] | Refusal:
        if info["status"] != "InProgress":
            return Refusal("DeploymentAlreadyCompletedException")
        info["status"] = "Stopped"
        return {"status": "Pending"}

    subject = await _staged(deployed, aws, ScriptedAgent(lambda _: _ended(after)))
    aws.answers |= {
        "codedeploy.CreateDeployment": create,
        "codedeploy.GetDeployment": lambda _: {"deploymentInfo": info},
        "codedeploy.StopDeployment": stop,
    }
    run_found = await run(subject, [check("rollout")], lambda _: None)
    says(run_found.findings[0], Outcome.FAILED if part else Outcome.PASSED, part)
    assert run_found.remains == []
    content = json.loads(asked[0]["revision"]["appSpecContent"]["content"])
    assert content["Resources"][0]["worker"]["Properties"] == {
        "Name": PHYSICAL["WorkerFunction"],
        "Alias": "live",
        "CurrentVersion": "1",
        "TargetVersion": "2",
    }
    assert functions.behind == {PHYSICAL["WorkerFunction"]: "1"}
    assert functions.weights == {}
    assert functions.published == set()


async def test_a_rollout_begins_when_its_alarms_are_quiet(deployed: Open, aws: ScriptedAws) -> None:
    """An alarm that an earlier check has made ring is waited for; one that stays begins nothing."""
    subject = await _staged(deployed, aws, ScriptedAgent(lambda _: _ended("COMPLETED")))
    aws.answers["cloudwatch.DescribeAlarms"] = {"MetricAlarms": [{"StateValue": "ALARM"}]}
    found = await finding(subject, check("rollout"))
    says(found, Outcome.FAILED, "the quiet of its alarms did not come")
    assert set(aws.called) == {"codedeploy.GetDeploymentGroup", "cloudwatch.DescribeAlarms"}


async def _staged(deployed: Open, aws: ScriptedAws, agent: ScriptedAgent) -> Subject:
    """Open a stack that is rolled out in stages; its alarm rings, and then no more."""
    rings = iter(["ALARM"])

    def alarms(params: dict[str, Any]) -> dict[str, Any]:
        assert params["AlarmNames"] == ["not loaded"]
        return {"MetricAlarms": [{"StateValue": next(rings, "OK")}]}

    watched = {"alarmConfiguration": {"alarms": [{"name": "not loaded"}]}}
    aws.answers |= {
        "codedeploy.GetDeploymentGroup": {"deploymentGroupInfo": watched},
        "cloudwatch.DescribeAlarms": alarms,
    }
    parts = {"ServerlessDeploymentApplication": "app", "WorkerFunctionDeploymentGroup": "group"}
    consent = Consent(changes=True)
    subject: Subject = await deployed(agent, consent=consent, Rollout="canary")
    _, stack = subject.on_aws()
    subject.stack = replace(stack, resources={**PHYSICAL, **parts})
    return subject


def _ended(state: str) -> dict[str, Any]:
    return {"status": {"state": f"TASK_STATE_{state}"}}


async def test_a_rollout_needs_a_stack_that_has_one(deployed: Open, aws: ScriptedAws) -> None:
    """On a stack that is updated all at once nothing is changed, and the parameter is named."""
    subject = await deployed(ScriptedAgent(), consent=Consent(changes=True))
    says(
        await finding(subject, check("rollout")),
        Outcome.NOT_POSSIBLE,
        "needs a stack with Rollout=canary or linear",
    )
    assert aws.calls == []


# -- the bill --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counted", "part"),
    [
        ({"requests": 3, "worker invocations": 1, "table writes": 4}, ""),
        ({"requests": 2, "worker invocations": 1, "table writes": 4}, "count of the requests"),
        ({"requests": 3, "worker invocations": 0, "table writes": 4}, "no invocation"),
        ({"requests": 3, "worker invocations": 1}, "no write unit"),
    ],
)
async def test_what_is_counted(
    deployed: Open, aws: ScriptedAws, counted: dict[str, float], part: str
) -> None:
    """CloudWatch has to have counted every request of the run, and what the requests caused."""

    def data(params: dict[str, Any]) -> dict[str, Any]:
        labels = {query["Label"] for query in params["MetricDataQueries"]}
        assert counted.keys() <= labels
        results = [
            {"Id": "m", "Label": label, "Values": [value / 2, value / 2]}
            for label, value in counted.items()
        ]
        return {"MetricDataResults": results}

    aws.answers["cloudwatch.GetMetricData"] = data
    subject = await deployed()
    subject.requests = 3
    found = await finding(subject, check("bill"))
    says(found, Outcome.FAILED if part else Outcome.PASSED, part)


async def test_the_counters_are_one_question(deployed: Open) -> None:
    """All counters fit into one call of CloudWatch, each with a name of its own."""
    subject = await deployed()
    queries = bill.queries(subject.stack)
    assert len({query["Label"] for query in queries}) == len(queries) < 500
