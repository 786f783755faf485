"""Versions of the functions, the alias that everything calls, and how an update reaches it."""

import json
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import Any

import pytest

from tests.infrastructure.test_functions import FUNCTIONS
from tests.support import pages
from tests.support.permissions import transformed as transformed_with

Json = dict[str, Any]

ALIASES = {f"{function}Aliaslive": function for function in FUNCTIONS}
SOURCES = ("DeadLetters", "EveryMinute", "EveryMinutePermission")
LONGEST_S = 900
"""The time that both rollouts take at least."""


def other_value(parameter: Json) -> str:
    """A value that a parameter may have instead of its default."""
    default = str(parameter["Default"])
    if "AllowedValues" in parameter:
        return next(str(it) for it in parameter["AllowedValues"] if str(it) != default)
    return str(float(default) + 1) if parameter["Type"] == "Number" else f"{default}other"


def functions_alone(document: Json) -> Json:
    """The template with no other resources, which SAM expands in a tenth of the time."""
    kept = {*FUNCTIONS, "RuntimeLayer"}
    resources = {name: it for name, it in document["Resources"].items() if name in kept}
    return document | {"Resources": resources}


def versions(resources: Json) -> dict[str, Json]:
    """The version behind each function's alias, with its logical id."""
    found = {}
    for alias, function in ALIASES.items():
        properties = resources[alias]["Properties"]
        name, attribute = properties["FunctionVersion"]["Fn::GetAtt"]
        assert (attribute, properties["FunctionName"]) == ("Version", {"Ref": function})
        found[function] = {"id": name, **resources[name]}
    return found


def references(value: Any) -> Iterator[str]:
    """Each logical id that an expression names."""
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), _]}:
            yield name
        case {"Fn::Sub": text}:
            written = text if isinstance(text, str) else text[0]
            yield from (name.split(".")[0] for name in re.findall(r"\$\{([^!}]+)\}", written))
            yield from references([] if isinstance(text, str) else text[1])
        case {"DependsOn": names, **rest}:
            yield from [names] if isinstance(names, str) else names
            yield from references(rest)
        case dict():
            for each in value.values():
                yield from references(each)
        case list():
            for each in value:
                yield from references(each)


def _with_aliases(resource: Json) -> Any:
    """A resource that names aliases, where the API's URIs name a function and then its alias."""
    text = json.dumps(resource)
    for alias, function in ALIASES.items():
        text = text.replace(f"${{{function}.Arn}}:live", f"${{{alias}}}")
    return json.loads(text)


@pytest.mark.long
def test_every_changed_parameter_makes_new_versions(document: Json) -> None:
    """Another value of any parameter, alone, changes what CloudFormation replaces a version for.

    That is its description, the layer's ARN; and as each function has this layer, none of them is
    as it was when its last version was published, which Lambda would refuse to publish again.
    """
    alone = functions_alone(document)
    before = versions(transformed_with(alone, {}))
    assert versions(transformed_with(alone, {})) == before
    for name, parameter in document["Parameters"].items():
        resources = transformed_with(alone, {name: other_value(parameter)})
        for function, version in versions(resources).items():
            described = version["Properties"]["Description"]
            assert described != before[function]["Properties"]["Description"], (name, function)
            assert resources[described["Ref"]]["Type"] == "AWS::Lambda::LayerVersion"
            assert described in resources[function]["Properties"]["Layers"], function


def test_another_package_or_setting_makes_a_new_version(document: Json) -> None:
    """A changed property of one function makes a version of this function, and of no other."""
    alone = functions_alone(document)
    before = versions(transformed_with(alone, {}))
    changed = alone["Resources"]["WorkerFunction"]
    other = changed | {"Properties": changed["Properties"] | {"Description": "other"}}
    resources = alone["Resources"] | {"WorkerFunction": other}
    after = versions(transformed_with(alone | {"Resources": resources}, {}))
    assert {it for it in FUNCTIONS if after[it]["id"] != before[it]["id"]} == {"WorkerFunction"}


def test_former_versions_stay(transformed: Json) -> None:
    """The version before is there to go back to, and so that its invocations end."""
    for version in versions(transformed).values():
        assert version["Type"] == "AWS::Lambda::Version"
        assert (version["DeletionPolicy"], version["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_everything_that_calls_a_function_calls_its_alias(transformed: Json) -> None:
    """Only what belongs to a function, or measures it, names it without its alias."""
    named = {name: {*references(_with_aliases(it))} for name, it in transformed.items()}
    named_by = {(n, transformed[n]["Type"]) for n, names in named.items() if names & {*FUNCTIONS}}
    measures = {"AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard"}
    belongs = {"AWS::Lambda::Version", "AWS::Lambda::Alias"}
    assert {kind for _, kind in named_by} <= measures | belongs, named_by
    calls: dict[str, set[str]] = {alias: set() for alias in ALIASES}
    for name, names in named.items():
        for alias in names & {*ALIASES}:
            calls[alias].add(name)
    assert calls == {
        "ApiFunctionAliaslive": {"RestApi", "ApiPermission"},
        "StreamFunctionAliaslive": {"RestApi", "StreamPermission"},
        "WorkerFunctionAliaslive": {"WorkerFunctionOperations", "WorkerFunctionQuarantine"},
        "SweeperFunctionAliaslive": {f"SweeperFunction{it}" for it in SOURCES},
        "PushFunctionAliaslive": {"PushFunctionCommits", "PushFunctionDeliveries"},
    }


def can_be_made(resources: Json) -> None:
    """Alarms, deployment groups, aliases, the API and PushFunction have some order."""
    graph = {name: {*references(it)} & resources.keys() for name, it in resources.items()}
    assert len([*TopologicalSorter(graph).static_order()]) == len(resources)


def test_all_at_once_needs_no_codedeploy(transformed: Json) -> None:
    """The default moves the alias with the update itself, and makes nothing of CodeDeploy."""
    can_be_made(transformed)
    assert not [it for it in transformed.values() if it["Type"].startswith("AWS::CodeDeploy::")]
    assert not [alias for alias in ALIASES if "UpdatePolicy" in transformed[alias]]


ROLLOUTS = [("canary", "Canary10Percent15Minutes"), ("linear", "Linear10PercentEvery3Minutes")]


@pytest.mark.parametrize(("rollout", "configuration"), ROLLOUTS)
def test_alarms_take_a_rollout_back(document: Json, rollout: str, configuration: str) -> None:
    """CodeDeploy moves each alias in stages, and back when one of the alarms rings."""
    resources = transformed_with(document, {"Rollout": rollout})
    can_be_made(resources)
    for alias, function in ALIASES.items():
        policy = resources[alias]["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
        group = resources[policy["DeploymentGroupName"]["Ref"]]["Properties"]
        chosen = group["DeploymentConfigName"]["Fn::Sub"][1]
        assert chosen == {"ConfigName": configuration}, function
        back, watched = group["AutoRollbackConfiguration"], group["AlarmConfiguration"]
        assert back["Enabled"] is watched["Enabled"] is True
        assert "DEPLOYMENT_STOP_ON_ALARM" in back["Events"]
        alarms = [it["Name"]["Ref"] for it in watched["Alarms"]]
        assert 0 < len(alarms) <= 10  # CodeDeploy takes no more
        assert {resources[it]["Type"] for it in alarms} == {"AWS::CloudWatch::Alarm"}


def test_the_alarms_of_a_rollout(document: Json) -> None:
    """The page `releases` names each alarm that takes an update back, and no other.

    What they look at is no longer than the rollout: a version's faults ring before its end.
    """
    silences = document["Mappings"]["WorkerTimeouts"].values()
    longest = max(it["Silence"] for it in silences)
    alarms = [it["Ref"] for it in document["Globals"]["Function"]["DeploymentPreference"]["Alarms"]]
    assert len(alarms) == 10
    for name in alarms:
        properties = document["Resources"][name]["Properties"]
        queries = properties.get("Metrics", ())
        statistics = [it["MetricStat"] for it in queries if "MetricStat" in it]
        periods = [it["Period"] for it in [*statistics, properties] if "Period" in it]
        seconds = max(longest if isinstance(period, dict) else period for period in periods)
        assert seconds * properties["EvaluationPeriods"] <= LONGEST_S, name
    page = pages.text("releases")
    told = page.partition("The alarms:\n")[2].partition("CodeDeploy takes ten")[0]
    assert re.findall(r"`(\w+)`", told) == sorted(alarms)
