"""`keys` and `secrets`, against moto's Secrets Manager and a scripted CloudFormation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.http.auth import KeyRing
from a2a_serverless.settings import Settings
from a2a_serverless.worker.agents import take_environment
from a2a_serverless_tools.cli import keys
from tests.support.scripted_aws import REGION, Refusal, ScriptedAws
from tests.unit.cli.conftest import Run, secrets_manager, typing

FIRST = "the-first-key-of-alice-is-long"
TOKENS = "oidc:https://issuer.example|alice"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedAws) -> str:
    """The keys of the stack `mine`, which has one of alice."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    create, own = secrets_manager().create_secret, json.dumps({"alice": [FIRST, TOKENS]})
    outputs = {"ApiKeys": create(Name="keys", SecretString=own)["ARN"], "Table": "t", "Queue": "q"}
    outputs["SigningSecret"] = create(Name="signing", SecretString="s" * 64)["ARN"]
    listed = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
    stack = {"StackName": "mine", "Outputs": listed}
    scripted.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    return str(outputs["ApiKeys"])


@pytest.fixture
def act(run: Run) -> Callable[..., Any]:
    return lambda *words: run("keys", *words, "--stack", "mine", "--yes")


def current(secret: str) -> str:
    # Without a stage moto returns the version that was put as the current one last.
    found = secrets_manager().get_secret_value(SecretId=secret, VersionStage="AWSCURRENT")
    return str(found["SecretString"])


def ring(secret: str) -> KeyRing:
    return KeyRing.parse(current(secret))


def test_a_rotation_keeps_the_old_key_until_it_is_removed(act: Any, secret: str) -> None:
    """A key is shown once, and its digest stored; AWS keeps the keys before, and tokens stay."""
    said = act("add", "bob")
    assert said.code == 0, said.err
    assert said.out.strip() not in current(secret)
    assert ring(secret).name_of(said.out.strip()) == "bob"
    before = secrets_manager().get_secret_value(SecretId=secret, VersionStage="AWSPREVIOUS")
    assert json.loads(before["SecretString"]) == {"alice": [FIRST, TOKENS]}
    new = act("rotate", "alice").out.strip()
    assert {ring(secret).name_of(key) for key in (FIRST, new)} == {"alice"}
    assert act("remove", "alice", "--old").code == 0
    assert [ring(secret).name_of(key) for key in (FIRST, new)] == [None, "alice"]
    last = act("rotate", "alice", "--leaked").out.strip()
    assert [ring(secret).name_of(key) for key in (new, last)] == [None, "alice"]
    names = json.loads(current(secret))
    assert names["alice"][1:] == [TOKENS]
    assert act("remove", "alice").code == 0
    assert ring(secret).name_of(last) is None


def test_the_list_shows_no_key(run: Run, secret: str) -> None:
    """Names, and how many keys and holders of tokens each has; no act is done without a yes."""
    said = run("keys", "list", "--json", "--stack", "mine")
    assert said.json == {"name": "alice", "keys": 1, "tokens": 1}
    table = run("keys", "list", "--stack", "mine")
    assert ("alice" in table.out, FIRST in table.out) == (True, False)
    assert run("keys", "add", "bob", "--stack", "mine").code == 2
    assert ring(secret).name_of(FIRST) == "alice"


def test_of_two_who_change_it_at_once_one_changes_nothing(
    act: Any, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and the other's change stands."""
    read, other = keys._version, json.dumps({"carol": FIRST})

    async def late(*given: Any) -> Any:
        seen = await read(*given)
        secrets_manager().put_secret_value(SecretId=secret, SecretString=other)
        return seen

    monkeypatch.setattr(keys, "_version", late)
    changed = "The secret was changed by another command meanwhile, and not by this one"
    act("add", "bob").refuses(changed)
    assert ring(secret).name_of(FIRST) == "carol"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("add", "alice"), "alice has a key already: `keys rotate alice`"),
        (("add", "not a name"), "has no name of 1 to 100 characters"),
        (("rotate", "bob"), "The secret has no name bob"),
        (("rotate",), "Name a caller"),
        (("rotate", "alice", "--signing"), "Name a caller"),
        (("remove", "bob"), "The secret has no name bob"),
        (("rotate", "--signing"), "changed within half an hour"),
    ],
)
def test_what_cannot_be_done(words: tuple[str, ...], named: str, act: Any, secret: str) -> None:
    """Nothing is changed."""
    act(*words).refuses(named)
    assert ring(secret).name_of(FIRST) == "alice"


def test_the_signing_key_is_changed(act: Any, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a random one, once the key before it signs for sure."""
    monkeypatch.setattr(keys, "_SIGNS_AFTER", -keys._SIGNS_AFTER)
    assert act("rotate", "--signing").code == 0
    text = current("signing")
    assert len(text) == 64
    assert text != "s" * 64


# -- secrets --------------------------------------------------------------------------------------

CONFIG = f"""\
version = 0.1

[default.global.parameters]
stack_name = "mine"
region = "{REGION}"

[default.deploy.parameters]
resolve_s3 = true

[prod.deploy.parameters]
stack_name = "prod"
parameter_overrides = "Auth=oidc"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: ScriptedAws) -> Path:
    """A project with keys, and an account without its stack."""
    (tmp_path / "template.yaml").write_text("Resources:\n  TaskTable:\n    Type: a\n")
    (tmp_path / "samconfig.toml").write_text(CONFIG)
    (tmp_path / ".env").write_text("MODEL_KEY=one\nOTHER_KEY=two\nAWS_PROFILE=mine\n")
    monkeypatch.chdir(tmp_path)
    none = Refusal("ValidationError", "Stack with id mine does not exist")
    scripted.answers["cloudformation.DescribeStacks"] = none
    return tmp_path


def stored(name: str) -> Any:
    return json.loads(secrets_manager().get_secret_value(SecretId=name)["SecretString"])


def test_a_first_secret_is_made(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question with names and no values; the next deployment lets workers read it."""
    asked = typing(monkeypatch, "y")
    said = run("secrets")
    assert said.code == 0, said.err
    keys = f"MODEL_KEY, OTHER_KEY of {project}/.env"
    assert asked == [f"Write {keys} to a new secret mine-agent, for the stack mine? [y/N] "]
    assert stored("mine-agent") == {"MODEL_KEY": "one", "OTHER_KEY": "two"}
    arn = secrets_manager().describe_secret(SecretId="mine-agent")["ARN"]
    line = f'[default.deploy.parameters]\nparameter_overrides = "AgentSecretArn={arn}"\n'
    config = (project / "samconfig.toml").read_text()
    assert config == CONFIG.replace("[default.deploy.parameters]\n", line)
    worker: dict[str, str] = {}
    take_environment(Settings(agent_secret=arn), worker)
    assert worker["MODEL_KEY"] == "one"
    again = run("secrets")
    assert (again.code, "already" in again.err) == (0, True)


def test_the_stack_s_own_secret_is_changed(run: Run, project: Path, scripted: ScriptedAws) -> None:
    """What it has beside the named keys stays, and samconfig.toml as it is."""
    own = '{"MODEL_KEY": "old", "MORE": "kept"}'
    made = secrets_manager().create_secret(Name="own", SecretString=own)
    parameters = [{"ParameterKey": "AgentSecretArn", "ParameterValue": made["ARN"]}]
    stack = {"StackName": "mine", "Parameters": parameters}
    scripted.answers["cloudformation.DescribeStacks"] = {"Stacks": [stack]}
    scripted.answers["cloudformation.GetTemplate"] = {"TemplateBody": "Resources: {}"}
    said = run("secrets", "MODEL_KEY", "--yes")
    assert said.code == 0, said.err
    assert stored("own") == {"MODEL_KEY": "one", "MORE": "kept"}
    assert (project / "samconfig.toml").read_text() == CONFIG


def test_no_write_without_a_yes(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a program without --yes; with it a parameter joins those of its environment."""
    assert run("secrets").code == 2
    typing(monkeypatch, "n")
    assert run("secrets").code == 2
    assert secrets_manager().list_secrets()["SecretList"] == []
    assert run("secrets", "--config-env", "prod", "--region", REGION, "--yes").code == 0
    arn = secrets_manager().describe_secret(SecretId="prod-agent")["ARN"]
    config = (project / "samconfig.toml").read_text()
    assert config == CONFIG.replace('"Auth=oidc"', f'"AgentSecretArn={arn} Auth=oidc"')


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("env", "arguments", "named"),
    [
        ("MODEL_KEY=\n", ("MODEL_KEY",), "no value of MODEL_KEY"),
        ("MODEL_KEY=a\n", ("GONE",), "no value of GONE"),
        ("AWS_PROFILE=a\n", (), "no variable for the secret"),
        ("AWS_PROFILE=a\n", ("AWS_PROFILE",), "reserved name"),
        ("MODEL_KEY\n", (), "line 1"),
        ("MODEL_KEY=a\n", ("--config-env", "gone"), "gone"),
        ("MODEL_KEY=a\n", ("--stack", "broken", "--yes"), "no JSON object"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(
    env: str, arguments: tuple[str, ...], named: str, run: Run, project: Path
) -> None:
    """It names the place and the way out; no value is shown."""
    (project / ".env").write_text(env)
    secrets_manager().create_secret(Name="broken-agent", SecretString="text")
    run("secrets", *arguments).refuses(named)
