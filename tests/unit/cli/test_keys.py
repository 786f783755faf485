"""`keys`, against moto's Secrets Manager and a scripted CloudFormation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from a2a_serverless.http.auth import KeyRing
from a2a_serverless_tools.cli import keys
from tests.support.scripted_aws import REGION, ScriptedAws
from tests.unit.cli.conftest import Run, secrets_manager

FIRST = "the-first-key-of-alice-is-long"
TOKENS = "oidc:https://issuer.example|alice"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedAws) -> str:
    """The keys of the stack `mine`, which has one of alice."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    made = {
        "ApiKeys": secrets_manager().create_secret(
            Name="keys", SecretString=json.dumps({"alice": [FIRST, TOKENS]})
        ),
        "SigningSecret": secrets_manager().create_secret(Name="signing", SecretString="s" * 64),
    }
    outputs = {name: one["ARN"] for name, one in made.items()} | {"Table": "t", "Queue": "q"}
    listed = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
    scripted.answers["cloudformation.DescribeStacks"] = {
        "Stacks": [{"StackName": "mine", "Outputs": listed}]
    }
    return str(made["ApiKeys"]["ARN"])


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
    """A key is shown once and stored as its digest; the name's tokens stay through all of it.

    The keys before stay under the version's own stage, as AWS keeps it.
    """
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
    read = keys._version

    async def late(*given: Any) -> Any:
        seen = await read(*given)
        secrets_manager().put_secret_value(
            SecretId=secret, SecretString=json.dumps({"carol": FIRST})
        )
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
def test_what_cannot_be_done_is_one_sentence(
    words: tuple[str, ...], named: str, act: Any, secret: str
) -> None:
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
