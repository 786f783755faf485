"""`preflight`: each fault is one sentence, and nothing is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from a2a_serverless import aws
from a2a_serverless_tools.cli.preflight import _FAILED, _FIXED, _STAGED, _misplaced, _replaced
from a2a_serverless_tools.local.template import Template, find_template, read_document
from tests.unit.cli.conftest import Run
from tests.unit.live.scripted_aws import Refusal, ScriptedAws

Edit = Callable[[dict[str, Any]], object]

DOCUMENT = read_document(find_template())
ACCOUNT = "123456789012"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose template is ours, and its settings of a deployment."""
    text = find_template().read_text(encoding="utf-8")
    (tmp_path / "template.yaml").write_text(text, encoding="utf-8")
    settings = '[default.global.parameters]\nstack_name = "mine"\n'
    settings += '[default.deploy.parameters]\nregion = "eu-central-1"\n'
    (tmp_path / "samconfig.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted")
    return tmp_path


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, project: Path) -> ScriptedAws:
    """An account with the project's template as the stack `mine`, of which it reads alone."""
    account = ScriptedAws()
    text = (project / "template.yaml").read_text(encoding="utf-8")

    def template(params: dict[str, Any]) -> dict[str, Any]:
        assert params["TemplateStage"] == "Original", "what the transform made of it is another"
        return {"TemplateBody": text}

    account.answers = {
        "cloudformation.DescribeStacks": {"Stacks": [{"StackName": "mine", "Parameters": []}]},
        "cloudformation.GetTemplate": template,
    }
    monkeypatch.setattr(aws, "client", lambda service, **_: account.client(service))
    return account


def edited(edit: Edit) -> dict[str, Any]:
    """The template after an edit."""
    document = deepcopy(DOCUMENT)
    edit(document["Resources"])
    return document


def table_key(resources: dict[str, Any]) -> None:
    resources["TaskTable"]["Properties"]["KeySchema"][0]["AttributeName"] = "id"


def queue_name(resources: dict[str, Any]) -> None:
    queue = resources["OperationsQueue"]  # whose properties are another's, too
    queue["Properties"] = {**queue["Properties"], "QueueName": "mine.fifo"}


def queue_order(resources: dict[str, Any]) -> None:
    del resources["PushQueue"]["Properties"]["FifoQueue"]


def secret_name(resources: dict[str, Any]) -> None:
    resources["ApiKeys"]["Properties"]["Name"] = "keys"


def key_type(resources: dict[str, Any]) -> None:
    resources["TaskTable"]["Properties"]["AttributeDefinitions"][0]["AttributeType"] = "B"


def new_keys(resources: dict[str, Any]) -> None:
    resources["ApiKeys"]["Properties"]["GenerateSecretString"]["PasswordLength"] = 64


def bucket_name(resources: dict[str, Any]) -> None:
    resources["BlobBucket"]["Properties"]["BucketName"] = "files"


def new_index(resources: dict[str, Any]) -> None:
    table = resources["TaskTable"]["Properties"]
    table["AttributeDefinitions"] += [{"AttributeName": "new", "AttributeType": "S"}]


def renamed(resources: dict[str, Any]) -> None:
    resources["Tasks"] = resources.pop("TaskTable")


def new(name: str, property_: str) -> str:
    """What is said of a resource of which a property is another."""
    return f"replace {name} by a new one without its content, as {property_} would be another"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (table_key, [new("TaskTable", "KeySchema")]),
        (key_type, [new("TaskTable", "the type of PK")]),
        (queue_name, [new("OperationsQueue", "QueueName")]),
        (queue_order, [new("PushQueue", "FifoQueue")]),
        (secret_name, [new("ApiKeys", "Name")]),
        (new_keys, [new("ApiKeys", "GenerateSecretString")]),
        (bucket_name, [new("BlobBucket", "BucketName")]),
        (renamed, ["take TaskTable out of the stack"]),
        (lambda _: None, []),
        (new_index, []),
        (lambda it: it["TaskTable"]["Properties"].pop("WarmThroughput"), []),
        (lambda it: it["OperationsQueue"]["Properties"].update(VisibilityTimeout=1), []),
        (lambda it: it.pop("Dashboard"), []),
    ],
)
def test_what_an_update_would_replace(edit: Edit, words: list[str]) -> None:
    """The table, queues and secrets are named that would be another or gone, and nothing else."""
    found = list(_replaced(DOCUMENT, edited(edit)))
    assert len(found) == len(words)
    assert all(f"The update would {part}" in each for part, each in zip(words, found, strict=True))


def test_no_parameter_replaces_what_keeps_data() -> None:
    """The properties that may not change are the same for all values of all parameters."""
    kept = [it for it in DOCUMENT["Resources"].values() if it["Type"] in _FIXED]
    assert len(kept) > 8
    for resource in kept:
        fixed = {it: resource["Properties"].get(it) for it in _FIXED[resource["Type"]]}
        assert not {"Ref", "Fn::Sub", "Fn::If", "Condition"} & set(json.dumps(fixed).split('"'))
        assert "Condition" not in resource


def test_a_sound_update(deployed: ScriptedAws, run: Run) -> None:
    """The stack is read, nothing else is asked, and the answer says that nothing is wrong."""
    said = run("preflight")
    assert (said.code, said.out) == (0, "")
    assert "the stack mine keeps its table, queues and secrets" in said.err
    assert set(deployed.called) == {"cloudformation.DescribeStacks", "cloudformation.GetTemplate"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["Rollout=canary"], "Rollout canary or linear needs AlarmTopicArn"),
        (["--region", "mars-1"], "The region mars-1 has no apigateway, no dynamodb"),
        (["--region", "me-south-1"], "no layer of the Lambda Web Adapter for arm64 in me-south-1"),
        (["--region", "cn-north-1"], "for arm64 in cn-north-1"),
        ([f"AgentEnvironment=A={'x' * 5000}"], "AgentEnvironment has 5,002 characters, more than"),
        (["WorkerConcurrency=1"], "WorkerConcurrency is '1', and no number from 2 to 1000"),
        (["WorkerConcurrency=two"], "WorkerConcurrency is 'two', and no number from 2"),
        (["TraceSampling=1.5"], "TraceSampling is '1.5', and no number from 0 to 1"),
        (["Worker=fargate"], "Worker is 'fargate', and none of lambda, external"),
        (["KmsKeyArn=alias/mine"], "KmsKeyArn is 'alias/mine': must be empty or the ARN of a key"),
        (["Wroker=external"], "There is no parameter Wroker"),
        (["ParameterKey=Wroker,ParameterValue=external"], "There is no parameter Wroker"),
        (["WorkerTurns=5"], "WorkerTurns above 1 needs TurnTimeout"),
        (["Worker"], "Worker is no PARAMETER=VALUE."),
        (["--config-env", "none"], "has no environment none"),
    ],
)
def test_a_deployment_that_is_refused(
    deployed: ScriptedAws, run: Run, arguments: list[str], part: str
) -> None:
    """Each fault is one sentence, and the calls are those that read."""
    said = run("preflight", *arguments)
    (sentence,) = said.err.splitlines()
    assert (said.code, said.out) == (2, "")
    assert part in sentence
    assert set(deployed.called) <= {"cloudformation.DescribeStacks", "cloudformation.GetTemplate"}


def test_a_region_with_a_copy_of_the_layer(deployed: ScriptedAws, run: Run) -> None:
    """The copy is named by its parameter, of the deployed stack too."""
    arn = f"arn:aws:lambda:me-south-1:{ACCOUNT}:layer:adapter:1"
    assert run("preflight", "--region", "me-south-1", f"WebAdapterLayerArn={arn}").code == 0
    pair = {"ParameterKey": "WebAdapterLayerArn", "ParameterValue": arn}
    stack = {"StackName": "mine", "Parameters": [pair]}
    deployed.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    assert run("preflight", "--region", "me-south-1").code == 0


def test_a_template_that_was_edited(deployed: ScriptedAws, project: Path, run: Run) -> None:
    """The project's template is compared with the deployed one, by the whole command."""
    path = project / "template.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count("AttributeName: PK, KeyType") == 1
    path.write_text(text.replace("AttributeName: PK, KeyType", "AttributeName: P, KeyType"))
    said = run("preflight")
    (sentence,) = said.err.splitlines()
    assert (
        "replace TaskTable by a new one without its content, as KeySchema would be another"
        in sentence
    )
    assert sentence.endswith("Nothing was changed.")


def test_parameters_of_samconfig(deployed: ScriptedAws, project: Path, run: Run) -> None:
    """What `sam deploy` would give is checked, as text and as a list; an argument overrules it."""
    path = project / "samconfig.toml"
    for given in ('"Worker=fargate Release=1"', '["Worker=fargate", "Release=1"]'):
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}parameter_overrides = {given}\n", encoding="utf-8")
        assert "Worker is 'fargate'" in run("preflight").err
        assert run("preflight", "Worker=external").code == 0
        path.write_text(text, encoding="utf-8")


NONE = Refusal("ValidationError", "Stack with id mine does not exist")


@pytest.mark.parametrize(
    "answer", [NONE, {"Stacks": [{"StackName": "mine", "StackStatus": "REVIEW_IN_PROGRESS"}]}]
)
def test_a_first_deployment(deployed: ScriptedAws, run: Run, answer: Any) -> None:
    """Where nothing was made yet, there is nothing to replace; parameters are checked."""
    deployed.answers["cloudformation.DescribeStacks"] = answer
    assert "no stack mine in eu-central-1 yet, so it is new" in run("preflight").err
    assert run("preflight", "Worker=fargate").code == 2


def test_no_stack_is_named(deployed: ScriptedAws, project: Path, run: Run) -> None:
    """The answer says that nothing was compared."""
    (project / "samconfig.toml").unlink()
    said = run("preflight", "--region", "eu-central-1")
    assert said.code == 0
    assert "name no stack, so it was compared with none" in said.err
    assert deployed.called == []


@pytest.mark.parametrize(
    ("state", "way_out"),
    [*_FAILED.items(), ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "wait until that is done")],
)
def test_a_stack_that_takes_no_update(
    deployed: ScriptedAws, run: Run, state: str, way_out: str
) -> None:
    """The sentence names its state and the way out."""
    stack = {"StackName": "mine", "StackStatus": state}
    deployed.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    said = run("preflight")
    assert said.code == 2
    assert f"The stack mine is {state} and takes no update: {way_out}." in said.err


@pytest.mark.parametrize(
    ("name", "had", "given", "part"),
    [
        ("Shards", "16", "8", "Shards would go from 16 to 8, and tasks in the partitions above"),
        ("Shards", "8", "16", ""),
        (
            "TtlDays",
            "30",
            "7",
            "TtlDays would go from 30 to 7, and the bucket would remove the files",
        ),
        ("TtlDays", "30", "90", ""),
        ("WarmWriteUnits", "8000", "4000", "WarmWriteUnits would go from 8000 to 4000, and AWS"),
        ("WarmWriteUnits", "8000", "0", ""),
        ("WarmWriteUnits", "0", "100", "WarmWriteUnits is '100': must be 0, or 4000 to 40000"),
    ],
)
def test_what_may_only_be_raised(
    deployed: ScriptedAws, run: Run, name: str, had: str, given: str, part: str
) -> None:
    """A value below that of the deployed stack is refused, as what AWS would not take."""
    pair = {"ParameterKey": name, "ParameterValue": had}
    stack = {"StackName": "mine", "Parameters": [pair]}
    deployed.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    said = run("preflight", f"{name}={given}")
    assert said.code == (2 if part else 0)
    assert part in said.err


KEY = f"arn:aws:kms:eu-central-1:{ACCOUNT}:key/0a1b"


@pytest.mark.parametrize("present", [{}, {"KmsKeyArn": KEY, "WarmWriteUnits": "8000"}])
def test_the_template_of_a_restored_table(
    deployed: ScriptedAws, project: Path, run: Run, present: dict[str, str]
) -> None:
    """CloudFormation takes it as it is: the table alone, in plain values, by the linter's rules."""
    pairs = [{"ParameterKey": it, "ParameterValue": value} for it, value in present.items()]
    stack = {"StackName": "mine", "Parameters": pairs}
    deployed.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    said = run("restore-template")
    table = json.loads(said.out)["Resources"].pop("TaskTable")
    assert table["DeletionPolicy"], "without one nothing is imported"
    properties = table["Properties"]
    assert properties == Template(DOCUMENT, present).properties("TaskTable")
    assert ("SSESpecification" in properties, "WarmThroughput" in properties) == (
        bool(present),
        bool(present),
    )
    (project / "table.json").write_text(said.out)
    linter = Path(sys.executable).with_name("cfn-lint")
    lint = [str(linter), "--template", "table.json", "--regions", "eu-central-1"]
    linted = subprocess.run(lint, check=False, capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_profile_of_samconfig(
    deployed: ScriptedAws, project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account is asked that `sam deploy` would change."""
    monkeypatch.setenv("AWS_PROFILE", "")  # and undone at the end
    with (project / "samconfig.toml").open("a", encoding="utf-8") as settings:
        settings.write('profile = "production"\n')
    assert "cannot be read (ProfileNotFound)" in run("preflight").err
    assert os.environ["AWS_PROFILE"] == "production"


def test_a_staged_update_needs_codedeploy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for where `Rollout` has stages, and nowhere else."""
    known = botocore.session.Session.get_available_regions

    def without(session: Any, service: str, *more: Any) -> list[str]:
        return [] if service == _STAGED else list(known(session, service, *more))

    monkeypatch.setattr(botocore.session.Session, "get_available_regions", without)
    assert list(_misplaced("eu-central-1", {})) == []
    (sentence,) = _misplaced("eu-central-1", {"Rollout": "canary"})
    assert "The region eu-central-1 has no codedeploy" in sentence


def test_a_stack_that_cannot_be_read(deployed: ScriptedAws, run: Run) -> None:
    """The sentence names the rights."""
    deployed.answers["cloudformation.GetTemplate"] = Refusal("AccessDenied")
    said = run("preflight")
    assert said.code == 2
    assert "cannot be read (AccessDenied)" in said.err
    deployed.answers["cloudformation.DescribeStacks"] = Refusal("ValidationError", "of a name")
    assert "cannot be read (ValidationError)" in run("preflight", "--stack", "my stack").err
