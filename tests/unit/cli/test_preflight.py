"""`preflight`: each fault is one sentence, and nothing is changed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from a2a_serverless import aws
from a2a_serverless_tools.cli.preflight import _FAILED, _STAGED, _misplaced
from tests.support.permissions import transform
from tests.support.scripted_aws import Refusal, ScriptedAws
from tests.support.template import TEMPLATE, Template, read
from tests.unit.cli.conftest import Run

ACCOUNT = "123456789012"
SAM = """\
#!/bin/sh
echo "$@" > {calls}
echo made > {made}
echo 'Waiting for changeset to be created..'
{ends}
"""


class Deployed(ScriptedAws):
    """An account whose stack is `mine`, and a SAM whose change set is there until it is deleted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.made, self.calls_of_sam = folder / "made", folder / "calls"
        self.changes: list[dict[str, Any]] = []
        self.others_meanwhile: list[str] = []
        self.parameters = [*read()["Parameters"]]
        self.answers = {
            "cloudformation.DescribeStacks": {"Stacks": [{"StackName": "mine", "Parameters": []}]},
            "cloudformation.ListChangeSets": lambda _: {"Summaries": self.listed()},
            "cloudformation.DescribeChangeSet": self._described,
            "cloudformation.DeleteChangeSet": self._deleted,
        }
        self.sam = folder / "bin" / "sam"
        self.sam.parent.mkdir()
        self.sam_ends()

    def sam_ends(self, how: str = "exit 0") -> None:
        """Have SAM end another way, after it has made its change set."""
        text = SAM.format(calls=self.calls_of_sam, made=self.made, ends=how)
        self.sam.write_text(text, encoding="utf-8")
        self.sam.chmod(0o755)

    def listed(self) -> list[dict[str, Any]]:
        names = ["by-hand", "samcli-deploy1"]  # of others: they stay
        names += ["samcli-deploy2", *self.others_meanwhile] if self.made.exists() else []
        return [{"ChangeSetName": it, "ChangeSetId": f"arn:{it}"} for it in names]

    def _described(self, params: dict[str, Any]) -> dict[str, Any]:
        assert params["ChangeSetName"] == "arn:samcli-deploy2"
        return {
            "Status": "CREATE_COMPLETE",
            "Parameters": [{"ParameterKey": it} for it in self.parameters],
            "Changes": [{"ResourceChange": it} for it in self.changes],
        }

    def _deleted(self, params: dict[str, Any]) -> dict[str, Any]:
        assert params["ChangeSetName"] == "arn:samcli-deploy2"
        self.made.unlink()
        return {}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and its settings of a deployment."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "template.yaml").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    settings = '[default.global.parameters]\nstack_name = "mine"\n'
    settings += '[default.deploy.parameters]\nregion = "eu-central-1"\n'
    (folder / "samconfig.toml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted")
    return folder


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, project: Path, tmp_path: Path) -> Iterator[Deployed]:
    """The account; whatever a command was asked, no change set remains."""
    account = Deployed(tmp_path)
    monkeypatch.setenv("PATH", str(account.sam.parent), prepend=os.pathsep)
    monkeypatch.setattr(aws, "client", lambda service, **_: account.client(service))
    yield account
    assert not account.made.exists()


TABLE, QUEUE, SECRET = "DynamoDB::Table", "SQS::Queue", "SecretsManager::Secret"
GENERATED = "GenerateSecretString"


def changed(
    name: str, kind: str, *properties: str, recreation: str = "Always", **fields: Any
) -> dict[str, Any]:
    """A change of a resource, as CloudFormation tells it."""
    own = {"Attribute": "Properties", "RequiresRecreation": recreation}
    targets = [{"Name": it, **own} for it in properties]
    return {
        "Action": "Modify",
        "LogicalResourceId": name,
        "ResourceType": f"AWS::{kind}",
        "Replacement": {"Always": "True", "Never": "False"}.get(recreation, "Conditional"),
        "Details": [{"Target": it, "Evaluation": "Static"} for it in targets],
        **fields,
    }


def keys(**types: str) -> str:
    """A table with keys of these types, before or after a change."""
    defined = [{"AttributeName": it, "AttributeType": kind} for it, kind in types.items()]
    return json.dumps({"Properties": {"AttributeDefinitions": defined}})


def table_keys(before: str, after: str) -> dict[str, Any]:
    contexts = {"BeforeContext": before, "AfterContext": after}
    maybe = {"recreation": "Conditionally", **contexts}
    return changed("TaskTable", TABLE, "AttributeDefinitions", **maybe)


UPDATES: list[tuple[dict[str, Any], str]] = [
    (changed("TaskTable", TABLE, "KeySchema", recreation="Conditionally"), "KeySchema"),
    (changed("TaskTable", TABLE, "TableName"), "TableName"),
    (table_keys(keys(PK="S"), keys(PK="B")), "the type of PK"),
    (table_keys(keys(PK="S"), keys(PK="S", new="S")), ""),
    (table_keys("", ""), ""),
    (changed("Jobs", QUEUE, "FifoQueue", "QueueName"), "FifoQueue, QueueName"),
    (changed("Jobs", QUEUE, "VisibilityTimeout", recreation="Never"), ""),
    (changed("ApiKeys", SECRET, "Name"), "Name"),
    (changed("ApiKeys", SECRET, GENERATED, recreation="Never"), GENERATED),
    (changed("BlobBucket", "S3::Bucket", "BucketName"), "BucketName"),
    (changed("Jobs", QUEUE, Replacement="True"), "its type"),
    (changed("TaskTable", TABLE, Action="Remove"), "gone"),
    (changed("TaskTable", TABLE, Action="Add", Replacement="False"), ""),
    (changed("Layer", "Lambda::LayerVersion", "Content"), ""),
    (changed("Dashboard", "CloudWatch::Dashboard", Action="Remove"), ""),
    (changed("TraceHeaders", SECRET, Action="Remove"), ""),
]
"""Changes, and which property of what keeps data would be another."""


def test_what_an_update_would_replace(deployed: Deployed, run: Run) -> None:
    """What keeps data and would be another or gone is named, and nothing else."""
    deployed.changes = [change for change, _ in UPDATES]
    said = run("preflight")
    _, *found = said.err.splitlines()
    assert said.code == 2
    named = [(change["LogicalResourceId"], words) for change, words in UPDATES if words]
    assert len(found) == len(named)
    for (name, words), sentence in zip(named, found, strict=True):
        new = f"replace {name} by a new one without its content, as {words} would be another"
        part = f"take {name} out of the stack" if words == "gone" else new
        assert f"The update would {part}" in sentence
        assert sentence.endswith("Nothing was changed.")


FIXED = {
    "AWS::DynamoDB::Table": ("TableName", "KeySchema", "LocalSecondaryIndexes"),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::SQS::Queue": ("QueueName", "FifoQueue"),
    "AWS::SecretsManager::Secret": ("Name", "GenerateSecretString"),
}
"""What keeps data, and its properties that CloudFormation changes by making another one."""


def test_no_parameter_replaces_what_keeps_data() -> None:
    """Of what keeps data such a property is the same, whatever the parameters are."""
    resources = read()["Resources"].items()
    kept = [it for name, it in resources if it["Type"] in FIXED and name != "TraceHeaders"]
    assert {it["Type"] for it in kept} == FIXED.keys()
    for resource in kept:
        fixed = {it: resource["Properties"].get(it) for it in FIXED[resource["Type"]]}
        assert not {"Ref", "Fn::Sub", "Fn::If", "Condition"} & set(json.dumps(fixed).split('"'))
        assert "Condition" not in resource


TELLS = "echo; echo 'Changeset created successfully. arn:samcli-deploy2'"


@pytest.mark.parametrize(("how", "listed"), [("exit 0", []), (TELLS, ["samcli-deploy3"])])
def test_a_sound_update(deployed: Deployed, run: Run, how: str, listed: list[str]) -> None:
    """All is well, and SAM's change set is gone; that of another deployment stays unread."""
    deployed.sam_ends(how)
    deployed.others_meanwhile = listed
    said = run("preflight")
    assert (said.code, said.out) == (0, "")
    assert "the stack mine keeps its table, bucket, queues and secrets" in said.err
    options = "--stack-name mine --config-env default --region eu-central-1"
    wanted = f"deploy --no-execute-changeset --no-fail-on-empty-changeset {options}"
    assert deployed.calls_of_sam.read_text().strip() == wanted
    assert {*deployed.called} == {*deployed.answers}
    assert deployed.called.count("cloudformation.DeleteChangeSet") == 1


def test_a_projects_own_sam(deployed: Deployed, project: Path, run: Run, monkeypatch: Any) -> None:
    """That of its Makefile is taken before another one."""
    own = project / ".venv" / "sam" / "bin"
    own.mkdir(parents=True)
    deployed.sam.rename(own / "sam")
    assert run("preflight").code == 0
    (own / "sam").unlink()
    monkeypatch.setenv("PATH", str(own))
    assert "There is no sam: `make build` of a project installs it." in run("preflight").err


def test_what_cloudformation_refuses(deployed: Deployed, run: Run) -> None:
    """The sentence is that of SAM, and what it has made is gone all the same."""
    refusal = "echo 'Error: Failed' >&2; echo 'changeset: Why.' >&2; exit 1"
    for how, said in ((refusal, "changeset: Why."), ("echo no build; exit 2", "no build")):
        deployed.sam_ends(how)
        found = run("preflight")
        assert (found.code, f"{said} Nothing was changed." in found.err) == (2, True)
        assert "DeleteChangeSet" in deployed.called[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_preflight(deployed: Deployed, run: Run, number: int) -> None:
    """SAM is waited for, and what it makes meanwhile is gone; a second signal changes nothing."""
    made = deployed.made
    deployed.sam_ends(f"rm {made}; kill -{number} $PPID; sleep 0.1; echo > {made}")

    def interrupted(params: dict[str, Any]) -> Any:
        os.kill(os.getpid(), number)
        return deployed._deleted(params)

    deployed.answers["cloudformation.DeleteChangeSet"] = interrupted
    with suppress(KeyboardInterrupt):
        assert run("preflight").code == 130
    assert deployed.called[-1] == "cloudformation.DeleteChangeSet"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def present(deployed: Deployed, status: str = "", **parameters: str) -> None:
    """Have the deployed stack this status and these parameters."""
    pairs = [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()]
    stack = {"StackName": "mine", "StackStatus": status, "Parameters": pairs}
    deployed.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}


EARLIER = {"TaskTokens": "5000", "FlushMs": "100", "OtelLayer": "arn:layer", "AccessLogs": "false"}
OWN = {"Shards": "16", "TtlDays": "30", "WarmWriteUnits": "8000", "DeletionProtection": "false"}
FAILED, WAY_OUT = next(iter(_FAILED.items()))
CLEANING = "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"


@pytest.mark.parametrize(
    ("stack", "arguments", "code", "told", "untold"),
    [
        (EARLIER, "", 2, "TaskTokens=5000, which is gone: write A2A_TASK_TOKENS=5000", "FlushMs"),
        (EARLIER, "Settings=A2A_TASK_TOKENS=4", 0, "OtelLayer=arn:layer, which is", "AccessLogs"),
        (OWN, "", 0, "DeletionProtection=true protects what it holds", "go from"),
        (OWN, "DeletionProtection=true", 0, "keeps its table", "protects"),
        (OWN, "Shards=32 TtlDays=90 WarmWriteUnits=0", 0, "keeps its table", "go from"),
        (OWN, "Shards=8", 2, "Shards would go from 16 to 8, and tasks in the partitions", "?"),
        (OWN, "TtlDays=7", 2, "TtlDays would go from 30 to 7, and the bucket would remove", "?"),
        (OWN, "WarmWriteUnits=4000", 2, "WarmWriteUnits would go from 8000 to 4000, and AWS", "?"),
        ("REVIEW_IN_PROGRESS", "", 0, "no stack mine in eu-central-1 yet, so it is new", "?"),
        (FAILED, "", 2, f"The stack mine is {FAILED} and takes no update: {WAY_OUT}.", "?"),
        (CLEANING, "", 2, f"is {CLEANING} and takes no update: wait until that is done.", "?"),
    ],
)
def test_what_the_deployed_stack_has_counts(
    deployed: Deployed, run: Run, stack: Any, arguments: str, code: int, told: str, untold: str
) -> None:
    """Choices of an earlier template, values that may only be raised, its state, its protection."""
    present(deployed, **(stack if isinstance(stack, dict) else {"status": stack}))
    said = run("preflight", *arguments.split())
    assert (said.code, told in said.err, untold in said.err) == (code, True, False), said.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("--region mars-1", "The region mars-1 has no apigateway, no dynamodb"),
        ("--region me-south-1", "no layer of the Lambda Web Adapter for arm64 in me-south-1"),
        ("--region cn-north-1", "for arm64 in cn-north-1"),
        ("--config-env none", "has no environment none"),
        ("Worker", "Worker is no PARAMETER=VALUE."),
        ("Wroker=external", "There is no parameter Wroker; Worker is one. Nothing was changed."),
        ("ParameterKey=Wroker,ParameterValue=1", "There is no parameter Wroker; Worker is one."),
        ("WorkerTimout=300", "There is no parameter WorkerTimout; WorkerTimeout is one."),
        ("FlushMs=50", "There is no parameter FlushMs: write A2A_FLUSH_MS=50 into Settings."),
        ("PushRetryHours=2", "write A2A_PUSH_RETRY_S=7200 into Settings."),
        ("OtelHeaders=k=v", "write them into the stack's secret (a2a-serverless docs traces)."),
        ("Settings=A2A_FLUSH_MS=x", "Settings: A2A_FLUSH_MS: Input should be a valid integer"),
        ("Settings=A2A_FLUSH=5", "Settings has A2A_FLUSH, which is no setting; A2A_FLUSH_MS is"),
        ("Settings=A2A_FLUSH_MS=50,A2A_FLUSH_MS=60", "Settings has A2A_FLUSH_MS twice"),
        ("Settings=A2A_TTL_DAYS=5", "template.yaml sets: choose it by the parameter TtlDays."),
        ("Settings=A2A_TABLE=mine", "Settings has A2A_TABLE, which template.yaml sets: change it"),
        ("AlarmTopicArn=", "AlarmTopicArn has no value, and SAM would leave it as it is: write"),
        ("'Settings=A2A_A=1, A2A_B=2'", "Settings has a space, and SAM would read its value up to"),
    ],
)
def test_what_is_refused(deployed: Deployed, run: Run, arguments: str, part: str) -> None:
    """What SAM or the functions would not understand is one sentence, before SAM is asked."""
    run("preflight", *shlex.split(arguments)).refuses(part)
    assert not deployed.calls_of_sam.exists()


def test_a_region_with_a_copy_of_the_layer(deployed: Deployed, project: Path, run: Run) -> None:
    """The copy is written into the template."""
    template = project / "template.yaml"
    text, aws_own = template.read_text(), "753240598075:layer:LambdaAdapterLayerArm64:30"
    template.write_text(text.replace(aws_own, f"{ACCOUNT}:layer:mine:1"))
    assert run("preflight", "--region", "me-south-1").code == 0


def test_parameters_of_samconfig(deployed: Deployed, project: Path, run: Run) -> None:
    """SAM reads them; with others beside them it is given all, but names without a value."""
    path = project / "samconfig.toml"
    text = path.read_text(encoding="utf-8")
    for given in ('"Worker=external Release=1"', '["Worker=external", "Release=1"]'):
        path.write_text(f"{text}parameter_overrides = {given}\n", encoding="utf-8")
        assert run("preflight").code == 0
        assert "--parameter-overrides" not in deployed.calls_of_sam.read_text()
        assert run("preflight", 'Release="a \\"b\\" c"', 'OidcIssuer=""').code == 0
        passed = deployed.calls_of_sam.read_text().strip().partition("--parameter-overrides ")[2]
        assert passed == 'Worker="external" Release="a \\"b\\" c" OidcIssuer=""'
    for given in ('"AlarmTopicArn= Worker=external"', '["AlarmTopicArn="]'):
        path.write_text(f"{text}parameter_overrides = {given}\n", encoding="utf-8")
        assert "AlarmTopicArn has no value" in run("preflight").err


NONE = Refusal("ValidationError", "Stack with id mine does not exist")


@pytest.mark.parametrize("how", ["exit 0", "exit 1"])
def test_the_stack_of_a_first_change_set(deployed: Deployed, run: Run, how: str) -> None:
    """CloudFormation makes one for the change set of a new stack: it is deleted, too."""
    deployed.sam_ends(how)
    state = {"is": ""}

    def describe_stacks(params: dict[str, Any]) -> Any:
        if deployed.made.exists():
            state["is"] = "REVIEW_IN_PROGRESS"
        stack = {"StackName": "mine", "StackId": "arn:mine", "StackStatus": state["is"]}
        return {"Stacks": [stack]} if state["is"] else NONE

    def delete_stack(params: dict[str, Any]) -> Any:
        assert params["StackName"] == "arn:mine"
        assert not deployed.made.exists()
        state["is"] = "DELETE_COMPLETE"
        return {}

    deployed.answers |= {
        "cloudformation.ListChangeSets": lambda _: {"Summaries": deployed.listed()[2:]},
        "cloudformation.DescribeStacks": describe_stacks,
        "cloudformation.DeleteStack": delete_stack,
    }
    said = run("preflight")
    assert said.code == (0 if how == "exit 0" else 2)
    assert ("no stack mine in eu-central-1 yet, so it is new" in said.err) == (said.code == 0)
    assert state["is"] == "DELETE_COMPLETE"


def test_no_stack_is_named(deployed: Deployed, project: Path, run: Run) -> None:
    """The answer says that nothing was compared."""
    (project / "samconfig.toml").unlink()
    said = run("preflight", "--region", "eu-central-1")
    assert said.code == 0
    assert "name no stack, so CloudFormation was not asked" in said.err
    assert deployed.called == []


KEY = f"arn:aws:kms:eu-central-1:{ACCOUNT}:key/0a1b"


@pytest.mark.long
@pytest.mark.parametrize("key", ["", KEY])
def test_a_restored_tables_template(deployed: Deployed, project: Path, run: Run, key: str) -> None:
    """CloudFormation takes it as it is: the table alone, with the values of its stack."""
    own = {"KmsKeyArn": key, "WarmWriteUnits": "8000", "DeletionProtection": "false"}
    present(deployed, **own, Shards="8")
    processed = {**read(), "Resources": transform(TEMPLATE)}
    deployed.answers["cloudformation.GetTemplate"] = {"TemplateBody": json.dumps(processed)}
    said = run("restore-template")
    made = json.loads(said.out)
    assert made["Resources"].keys() == {"TaskTable"}
    assert made["Resources"]["TaskTable"]["DeletionPolicy"], "without one nothing is imported"
    assert made["Parameters"].keys() == own.keys()
    as_deployed = Template(parameters=own).properties("TaskTable")
    assert Template(made).properties("TaskTable") == as_deployed
    if not key:
        return  # with a key there is one property more to lint
    (project / "table.json").write_text(said.out)
    linter = Path(sys.executable).with_name("cfn-lint")
    lint = [str(linter), "--template", "table.json", "--regions", "eu-central-1"]
    linted = subprocess.run(lint, check=False, capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_no_stack_whose_table_was_restored(deployed: Deployed, run: Run) -> None:
    """The sentence says how to name one."""
    deployed.answers["cloudformation.DescribeStacks"] = NONE
    way_out = "There is no stack mine: name the one whose table was restored with --stack."
    run("restore-template").refuses(way_out)


def test_samconfigs_profile(deployed: Deployed, project: Path, run: Run, monkeypatch: Any) -> None:
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
    assert list(_misplaced("eu-central-1", {}, has_layer=True)) == []
    (sentence,) = _misplaced("eu-central-1", {"Rollout": "canary"}, has_layer=True)
    assert "The region eu-central-1 has no codedeploy" in sentence


def test_a_stack_that_cannot_be_read(deployed: Deployed, run: Run) -> None:
    """The sentence names the rights."""
    deployed.answers["cloudformation.DescribeStacks"] = Refusal("AccessDenied")
    run("preflight").refuses("cannot be read (AccessDenied)")
    deployed.answers["cloudformation.DescribeStacks"] = Refusal("ValidationError", "of a name")
    assert "cannot be read (ValidationError)" in run("preflight", "--stack", "my stack").err
