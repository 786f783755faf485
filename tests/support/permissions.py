"""What each function may do by the transformed template, and what needs no call of its own."""

import functools
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

from tests.support.recorded_calls import KEYS, WRITES, Permission, of_keys

Json = dict[str, Any]

QUEUE_POLLER: Final = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
"""What Lambda calls with the function's role to feed it from a queue."""

STREAM_POLLER: Final = tuple(
    f"dynamodb:{it}" for it in ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
)
"""What Lambda calls with the function's role to feed it from a table's stream."""

RUNTIME: Final = (
    ("logs:CreateLogStream", "FunctionLogs"),
    ("logs:PutLogEvents", "FunctionLogs"),
    ("secretsmanager:GetSecretValue", "TraceHeaders"),  # where OtelEndpoint is set
)
"""What the runtime itself calls with the role of every function."""

_INTERFACES = ("CreateNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces")
_ADDRESSES = ("AssignPrivateIpAddresses", *_INTERFACES, "DescribeSubnets")
NETWORK: Final = tuple(f"ec2:{it}" for it in (*_ADDRESSES, "UnassignPrivateIpAddresses"))
"""What Lambda calls with the role of a function that runs in a VPC."""


def transform(template: Path) -> Json:
    """The resources after SAM's transform, with code as if uploaded."""
    return deepcopy(_transformed_text(template.read_text(encoding="utf-8")))


@functools.cache
def _transformed_text(text: str) -> Json:
    return transformed(yaml_parse(text), {})


def transformed(document: Json, parameters: Mapping[str, str]) -> Json:
    """The resources of a template after SAM's transform, which knows parameters as on AWS."""
    source = deepcopy(document)
    for resource in source["Resources"].values():
        for code in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
            resource["Properties"][code] = "s3://bucket/key"
    names = ("AWSLambdaBasicExecutionRole", "AWSXRayDaemonWriteAccess")
    managed = {name: f"arn:aws:iam::aws:policy/{name}" for name in names}
    session = boto3.Session(region_name="us-east-1")
    translator = Translator(managed, Parser(), boto_session=session)
    resources: Json = translator.translate(source, dict(parameters))["Resources"]
    return resources


def functions(resources: Json) -> list[str]:
    return sorted(name for name, it in resources.items() if it["Type"] == "AWS::Lambda::Function")


def granted(resources: Json) -> set[Permission]:
    """Each action on each resource that the role of a function allows, with all options chosen.

    To write the table is two things: to write items, and to write the published keys among them,
    which a statement may deny. What belongs to a key of the user's (`KmsKeyArn`) is left out: no
    call of ours names that key.
    """
    return {
        (function, action, resource)
        for function in functions(resources)
        for action, resource in _granted(list(statements(resources, role_of(resources, function))))
        if not action.startswith("kms:")
    }


def _granted(stated: list[Json]) -> set[tuple[str, str]]:
    """What these statements allow together.

    They may have a condition that AWS's own side meets (`kms:ViaService`), and no other.
    """
    allowed = {
        (action, resource)
        for statement in stated
        if statement["Effect"] == "Allow"
        for action, resource in _named(statement)
    }
    writes = {(a, of_keys(where)) for a, where in allowed if a in WRITES and "/" not in where}
    return (allowed | writes) - set(_denied(stated))


def _denied(stated: list[Json]) -> Iterator[tuple[str, str]]:
    """What these statements deny: writes of published keys, which is all that is understood here.

    What is denied to the code of functions, and not to Lambda itself, is left out: it is no call of
    ours that needs it.
    """
    for statement in stated:
        if statement["Effect"] != "Deny" or statement.get("Condition") == _OF_CODE:
            continue
        if statement.get("Condition") != _OF_KEYS:
            raise ValueError(f"This comparison does not understand {statement}.")
        for action, resource in _named(statement):
            yield action, of_keys(resource)


_OF_KEYS: Final = {"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": [KEYS]}}
"""Any item of the request is in the partition of the keys; `ForAllValues` would also be met by a
request that names none, and would miss a batch with one other item."""
_OF_CODE: Final = {"Null": {"lambda:SourceFunctionArn": "false"}}
"""The request comes from a function's code, and not from Lambda on its behalf."""


def _named(statement: Json) -> Iterator[tuple[str, str]]:
    for action in as_list(statement["Action"]):
        for resource in as_list(statement["Resource"]):
            yield action, name_of(resource)


def implied(resources: Json) -> set[Permission]:
    """What is needed beside this release's calls: by pollers and runtime.

    S3 tells who may list a bucket that an object is missing, and others that it is refused.
    """
    return {
        *_polled(resources),
        *((function, "s3:ListBucket", "BlobBucket") for function in functions(resources)),
        *((function, *need) for function in functions(resources) for need in RUNTIME),
        *((function, action, "*") for function in in_a_vpc(resources) for action in NETWORK),
    }


def in_a_vpc(resources: Json) -> list[str]:
    return [name for name in functions(resources) if "VpcConfig" in resources[name]["Properties"]]


def _polled(resources: Json) -> Iterator[Permission]:
    for it in resources.values():
        if it["Type"] != "AWS::Lambda::EventSourceMapping":
            continue
        source = it["Properties"]
        alias = resources[source["FunctionName"]["Ref"]]
        function = alias["Properties"]["FunctionName"]["Ref"]
        name = name_of(source["EventSourceArn"])
        for action in STREAM_POLLER if name.endswith("/stream") else QUEUE_POLLER:
            yield function, action, name
        if failures := source.get("DestinationConfig"):
            yield function, "sqs:SendMessage", name_of(failures["OnFailure"]["Destination"])


def role_of(resources: Json, function: str) -> str:
    name: str = resources[function]["Properties"]["Role"]["Fn::GetAtt"][0]
    return name


def statements(resources: Json, role: str) -> Iterator[Json]:
    """The statements of a role: those of its own policies and of the template's managed ones.

    A managed policy of AWS's is shown as one statement that allows its name on everything.
    """
    properties = resources[role]["Properties"]
    for policy in properties.get("Policies", ()):
        yield from chosen_statements(policy)
    for managed in _managed(properties.get("ManagedPolicyArns", ())):
        chosen = managed["Fn::If"][1] if "Fn::If" in managed else managed
        own = resources.get(chosen["Ref"]) if isinstance(chosen, dict) and "Ref" in chosen else None
        if own:
            yield from chosen_statements(own["Properties"])
        else:
            yield {"Effect": "Allow", "Action": str(managed), "Resource": "*"}


def _managed(arns: Any) -> Iterator[Any]:
    """The managed policies of a role, whose list may be split out of a text.

    Such a text has the names of policies, and conditions that put more of them behind. What stands
    for the user's own policies is left out: which these are, the user decides.
    """
    if isinstance(arns, list):
        yield from arns
        return
    text, more = arns["Fn::Split"][1]["Fn::Sub"]
    added = (chosen[1]["Fn::Sub"] for chosen in (value["Fn::If"] for value in more.values()))
    texts = [text, *(each for each in added if isinstance(each, str))]
    for name in re.findall(r"\$\{(\w+)\}", "".join(texts)):
        if name not in more:
            yield {"Ref": name}


def chosen_statements(policy: Json) -> Iterator[Json]:
    """The statements of a policy, with all options chosen."""
    for statement in policy["PolicyDocument"]["Statement"]:
        yield statement["Fn::If"][1] if "Fn::If" in statement else statement


def as_list(value: Any) -> list[Any]:
    """One or several, as IAM writes them."""
    return value if isinstance(value, list) else [value]


def name_of(resource: Any) -> str:
    """`Table`, `Table/index/name`, `Table/stream` or `*` for a resource's ARN in the template."""
    match resource:
        case {"Fn::GetAtt": [name, "Arn" | "Id"]} | {"Ref": name}:
            return str(name)
        case {"Fn::GetAtt": [name, "StreamArn"]}:
            return f"{name}/stream"
        case {"Fn::Sub": text}:
            path = str(text).replace("${", "").replace(".Arn}", "")
            return path.removesuffix("/*").removesuffix(":*")
        case _:
            return str(resource)
