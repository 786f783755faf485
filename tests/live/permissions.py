"""What the functions' roles must not do: by IAM's own simulation, and by one real call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.live.account import ERRORS, is_denied
from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.stack import ROLES, Stack
from tests.live.subject import Subject, artifact_text, state


@dataclass(frozen=True)
class Rule:
    """A role, an action, the logical id of what it is done to, and whether it is allowed."""

    role: str
    action: str
    resource: str
    allowed: bool = False


RULES: Final = (
    *(Rule(role, "dynamodb:Query", "TaskTable", allowed=True) for role in ROLES),
    *(Rule(role, "dynamodb:Scan", "TaskTable") for role in ROLES),
    *(Rule(role, "dynamodb:DeleteTable", "TaskTable") for role in ROLES),
    *(Rule(role, "dynamodb:Query", "TaskTable/index/by-id") for role in ROLES),
    *(
        Rule(role, "secretsmanager:GetSecretValue", "SigningSecret", allowed=role == "PushRole")
        for role in ROLES
    ),
    Rule("PushRole", "dynamodb:DeleteItem", "TaskTable"),
    Rule("PushRole", "sqs:SendMessage", "OperationsQueue"),
    Rule("WorkerRole", "sqs:SendMessage", "OperationsQueue", allowed=True),  # of woken turns
    Rule("ApiRole", "sqs:ReceiveMessage", "OperationsQueue"),
    Rule("StreamRole", "sqs:ReceiveMessage", "OperationsQueue"),
)


async def simulated(subject: Subject) -> Figures:
    """Ask IAM what it would decide."""
    account, stack = subject.on_aws()
    wrong, asked = [], 0
    for rule in RULES:
        try:
            found = await account.call("iam", "get_role", RoleName=stack.resources[rule.role])
            role = str(found["Role"]["Arn"])
            answer = await account.call(
                "iam",
                "simulate_principal_policy",
                PolicySourceArn=role,
                ActionNames=[rule.action],
                ResourceArns=[_arn(stack, rule.resource, role)],
            )
        except ERRORS as error:
            if is_denied(error):
                raise NotPossibleError("the credentials may not ask IAM to simulate") from error
            raise
        asked += 1
        decision = answer["EvaluationResults"][0]["EvalDecision"]
        if (decision == "allowed") != rule.allowed:
            wrong.append(f"{rule.role} {rule.action} {rule.resource}: {decision}")
    require(not wrong, f"IAM decides otherwise: {'; '.join(wrong)}", asked=asked)
    return {"asked": asked}


async def refused(subject: Subject) -> Figures:
    """Have the agent scan the table with WorkerFunction's role."""
    task = await subject.ended(await subject.begin("denied"), within_s=60)
    require(state(task) == "COMPLETED", f"the agent's try ended as {state(task)}")
    code = artifact_text(task)
    require(code == "AccessDeniedException", f"a Scan of the table by the worker was: {code}")
    return {"answered": code}


def _arn(stack: Stack, resource: str, role: str) -> str:
    """The ARN of a resource, in the partition and account of a role's."""
    _, partition, _, _, account, _ = role.split(":", 5)
    logical, _, rest = resource.partition("/")
    physical = stack.resources[logical]
    match logical:
        case "TaskTable":
            table = f"arn:{partition}:dynamodb:{stack.region}:{account}:table/{physical}"
            return f"{table}/{rest}" if rest else table
        case "OperationsQueue":  # its physical id is its URL
            name = physical.rpartition("/")[2]
            return f"arn:{partition}:sqs:{stack.region}:{account}:{name}"
        case _:  # an output has a secret's
            return stack.outputs[logical]


CHECKS = (
    Check("roles-simulated", "IAM denies each role what it is not for", simulated, Subject.on_aws),
    Check(
        "role-refused",
        "DynamoDB refuses a Scan with the worker's own role",
        refused,
        Subject.on_aws,
    ),
)
