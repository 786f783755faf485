"""The functions, their event sources and the layer; their routes are in test_routes.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.http.auth import KeyRing
from a2a_serverless.settings import CHOSEN, Observed, Settings, variable
from tests.support import pages
from tests.support.template import read

Json = dict[str, Any]

FUNCTIONS = ["ApiFunction", "StreamFunction", "WorkerFunction", "PushFunction", "SweeperFunction"]
ENDPOINTS = ("ApiFunction", "StreamFunction")


def variables(transformed: Json, function: str) -> Json:
    found: Json = transformed[function]["Properties"]["Environment"]["Variables"]
    return found


def test_functions_run_on_arm_with_the_layer(transformed: Json) -> None:
    """Every function is Python 3.13 on arm64 and has the framework's layer."""
    for function in FUNCTIONS:
        properties = transformed[function]["Properties"]
        (layer,) = [layer["Ref"] for layer in properties["Layers"] if "Ref" in layer]
        assert properties["Runtime"] == "python3.13"
        assert properties["Architectures"] == ["arm64"]
        assert transformed[layer]["Type"] == "AWS::Lambda::LayerVersion"
        assert transformed[layer]["Properties"]["CompatibleArchitectures"] == ["arm64"]


def test_no_environment_is_too_long(document: Json, transformed: Json) -> None:
    """Whatever the parameters are, the variables are less than the 4 KB that Lambda takes."""
    parameters = document["Parameters"]
    for function in FUNCTIONS:
        found = variables(transformed, function)
        size = sum(len(name) + longest(value, parameters) for name, value in found.items())
        assert size <= 4096, function


def test_each_parameter_is_explained(document: Json, project: Path) -> None:
    """The pages of docs/deploy name every parameter. There are few: the others are settings.

    `sam deploy --guided` asks for each, and for one of NoEcho again and again until it has a value.
    """
    page, parameters = pages.part("deploy"), document["Parameters"]
    assert [name for name in parameters if not re.search(rf"`{name}[`=]", page)] == []
    assert len(parameters) <= 42
    for template in (document, read(project / "fargate.yaml")):
        assert [it for it, of in template["Parameters"].items() if "NoEcho" in of] == []


def test_a_credential_of_the_exporter_is_in_a_secret(transformed: Json) -> None:
    """Where traces are exported each function knows the stack's secret, and none a header."""
    for function in FUNCTIONS:
        own, secret = variables(transformed, function), {"Fn::GetAtt": ["TraceHeaders", "Id"]}
        chosen = ["HasOtelEndpoint", secret, {"Ref": "AWS::NoValue"}]
        assert own["A2A_OTEL_SECRET"]["Fn::If"] == chosen
        assert "OTEL_EXPORTER_OTLP_HEADERS" not in own
    made = transformed["TraceHeaders"]
    assert (made["Condition"], made["Properties"]["SecretString"]) == ("HasOtelEndpoint", "{}")


def longest(value: Any, parameters: Json) -> int:
    """The most characters that a value of the template can have."""
    match value:
        case str() | int():
            return len(str(value))
        case {"Ref": name} if name in parameters:
            parameter = parameters[name]
            values = [*map(str, parameter.get("AllowedValues", ()))]
            known = {"Number": len("1000000"), "String": parameter.get("MaxLength")}
            return max(map(len, values)) if values else int(known[parameter["Type"]])
        case {"Ref": "AWS::StackName"}:
            return 128
        case {"Ref": "AWS::NoValue"}:
            return 0
        case {"Ref": "TaskTable" | "BlobBucket"}:  # a bucket's name has at most 63 characters
            return 128 + len("-TaskTable-0123456789AB")
        case {"Ref": name} if name.endswith("Queue"):  # a queue's name has at most 80 characters
            return len("https://sqs.ap-southeast-2.amazonaws.com.cn/123456789012/") + 80
        case {"Fn::GetAtt": [_, "Id"]}:  # the ARN of a secret
            return len("arn:aws-us-gov:secretsmanager:us-gov-west-1:123456789012:secret:") + 180
        case {"Fn::FindInMap": _}:
            return len("1000000")
        case {"Fn::If": [_, first, second]}:
            return max(longest(first, parameters), longest(second, parameters))
        case {"Fn::Sub": text}:
            return len(text) + sum(
                longest({"Ref": name}, parameters) if name in parameters else 20
                for name in re.findall(r"\${([^}]+)}", text)
            )
    raise AssertionError(f"unknown: {value}")


def test_the_adapter_streams(transformed: Json) -> None:
    """The adapter passes the answer on while it comes, and asks a path that needs no AWS."""
    layers = transformed["StreamFunction"]["Properties"]["Layers"]
    (adapter,) = [layer["Fn::Sub"] for layer in layers if "Fn::Sub" in layer]
    assert adapter.endswith(":LambdaAdapterLayerArm64:30")
    assert {
        "AWS_LWA_INVOKE_MODE": "response_stream",
        "AWS_LWA_READINESS_CHECK_PATH": "/healthz",
        "AWS_LAMBDA_EXEC_WRAPPER": "/opt/bootstrap",
    }.items() <= variables(transformed, "StreamFunction").items()


def test_streams_end_before_their_function(document: Json) -> None:
    """The function's time-out is 15 s above the longest stream, whatever StreamTimeout is."""
    limits = document["Parameters"]["StreamTimeout"]["AllowedValues"]
    timeouts = document["Mappings"]["StreamTimeouts"]
    assert all(timeouts[it]["FunctionTimeout"] == int(it) + 15 for it in limits)


def test_only_the_api_reaches_the_endpoints(transformed: Json) -> None:
    """No function has a URL of its own, and the one API may call the two that answer clients."""
    kinds = {resource["Type"] for resource in transformed.values()}
    called = {
        resource["Properties"]["FunctionName"]["Ref"]: resource["Properties"]
        for resource in transformed.values()
        if resource["Type"] == "AWS::Lambda::Permission"
        and resource["Properties"]["Principal"] == "apigateway.amazonaws.com"
    }
    assert "AWS::Lambda::Url" not in kinds
    assert called.keys() == {"ApiFunctionAliaslive", "StreamFunctionAliaslive"}
    for permission in called.values():
        assert permission["Action"] == "lambda:InvokeFunction"
        assert permission["SourceArn"]["Fn::Sub"].endswith(":${RestApi}/a2a/*")


@pytest.mark.parametrize("function", ["ApiFunction", "StreamFunction"])
def test_a_fresh_endpoint_is_closed(document: Json, transformed: Json, function: str) -> None:
    """Without a choice callers need a key, and the first one is made in the account itself.

    It is in no parameter and no variable; an open endpoint has to be asked for by name.
    """
    choice = document["Parameters"]["Auth"]
    generated = transformed["ApiKeys"]["Properties"]["GenerateSecretString"]
    environment = variables(transformed, function)
    assert choice["Default"] == "api-key"
    assert choice["AllowedValues"] == ["api-key", "api-key+oidc", "oidc", "none"]
    assert environment["A2A_AUTH"] == {"Ref": "Auth"}
    chosen = ["HasCallers", {"Fn::GetAtt": ["ApiKeys", "Id"]}, ""]
    assert environment["A2A_API_KEYS_SECRET"]["Fn::If"] == chosen
    assert "A2A_API_KEYS" not in environment
    made = json.loads(generated["SecretStringTemplate"])
    made[generated["GenerateStringKey"]] = "k" * generated["PasswordLength"]
    assert KeyRing.parse(json.dumps(made)).name_of("k" * 48) == "default"


def test_only_the_endpoints_know_of_callers(transformed: Json) -> None:
    """The agent's process neither holds the clients' keys nor learns where they are."""
    for function in FUNCTIONS:
        knows = {name for name in variables(transformed, function) if "API_KEY" in name}
        assert knows == ({"A2A_API_KEYS_SECRET"} if function in ENDPOINTS else set())


GIVEN: list[tuple[str, list[str], Any]] = [
    ("A2A_PUSH_QUEUE", [*ENDPOINTS, "PushFunction", "SweeperFunction"], {"Ref": "PushQueue"}),
    ("A2A_PUSH_EVENTS", [*ENDPOINTS, "PushFunction"], {"Ref": "PushEvents"}),
    ("A2A_SETTINGS", FUNCTIONS, {"Ref": "Settings"}),
    ("A2A_WORKER_TURNS", ["WorkerFunction"], {"Ref": "WorkerTurns"}),
    (  # without it a turn may take as long as its worker has
        "A2A_TURN_LIMIT_S",
        ["WorkerFunction"],
        {"Fn::If": ["HasTurnTimeout", {"Ref": "TurnTimeout"}, {"Ref": "AWS::NoValue"}]},
    ),
    ("A2A_UNDECODABLE_QUEUE", ["WorkerFunction"], ""),
    ("A2A_QUARANTINE_QUEUE", ["WorkerFunction"], {"Ref": "QuarantineQueue"}),
]
"""What a function's variable has to be; a worker sends to the quarantine alone, as what it cannot
read stays for the redrive policy."""


def test_what_is_chosen_reaches_the_functions(transformed: Json) -> None:
    """Functions that have to agree on a setting get it from one parameter or resource."""
    for name, functions, value in GIVEN:
        assert all(variables(transformed, each)[name] == value for each in functions), name


def test_every_variable_is_a_setting(transformed: Json) -> None:
    """The runtime reads every `A2A_` variable of the functions."""
    known = {CHOSEN, *map(variable, Settings.model_fields), *Observed.model_fields}
    given = {name for each in FUNCTIONS for name in variables(transformed, each)}
    assert {name for name in given if name.startswith("A2A_")} <= known
