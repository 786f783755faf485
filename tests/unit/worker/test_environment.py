"""The agent's variables: out of a secret, out of the deployment's parameters, out of `.env`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.local.dotenv import Dotenv
from a2a_serverless.settings import Settings
from a2a_serverless.worker.environment import take_environment

SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:agent"
VALUE = "sk-a-key-that-no-message-shows"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The text of the agent's secret, which a test puts in."""
    held: dict[str, str] = {}

    class Held:
        def __init__(self, name: str) -> None:
            self._name = name

        def read_now(self) -> str:
            return held[self._name]

    monkeypatch.setattr(aws, "SecretText", Held)
    return held


@pytest.mark.parametrize("text", ['{"REGION": "eu", "KEY": "x"}', " REGION = eu , KEY=x,"])
def test_variables_of_the_parameters(text: str) -> None:
    """A JSON object and a list of pairs say the same."""
    environment: dict[str, str] = {"PATH": "/bin"}
    take_environment(Settings(agent_environment=text), environment)
    assert environment == {"PATH": "/bin", "REGION": "eu", "KEY": "x"}


def test_variables_of_the_secret(secret: dict[str, str]) -> None:
    """The secret's entries are set as they are, and win over the parameters'."""
    secret[SECRET] = json.dumps({"KEY": VALUE, "_PEM": "line\nline, with = and spaces "})
    environment = {"KEY": "old"}
    take_environment(Settings(agent_secret=SECRET, agent_environment="KEY=y,OTHER=z"), environment)
    assert environment == {"KEY": VALUE, "_PEM": "line\nline, with = and spaces ", "OTHER": "z"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "A2A_AUTH",
            "AWS_ACCESS_KEY_ID",
            "LD_PRELOAD",
            "PYTHONPATH",
            "PATH",
            "path",
            "aws_region",
        ),
        *("", "1ST", "A B", "A=B", "Ä", f"{VALUE}\n"),
    ],
)
def test_a_refused_name_sets_nothing_and_is_not_shown(secret: dict[str, str], name: str) -> None:
    """A secret with a refused name sets no variable, and the error shows no name and no value."""
    secret[SECRET] = json.dumps({"GOOD": VALUE, name: VALUE})
    environment: dict[str, str] = {}
    with pytest.raises(ConfigurationError) as refused:
        take_environment(Settings(agent_secret=SECRET, agent_environment="B=c"), environment)
    assert str(refused.value).startswith(f"The secret {SECRET}: entry 2 has ")
    assert VALUE not in str(refused.value)
    assert environment == {}


@pytest.mark.parametrize(
    "text", ["", "[]", VALUE, '{"A": 1}', '{"A": "\\u0000"}', '{"A": "\\ud800"}', "{"]
)
def test_a_secret_of_another_form_is_refused(secret: dict[str, str], text: str) -> None:
    """The sentence names the secret and the form, and shows nothing of the text."""
    secret[SECRET] = text
    with pytest.raises(ConfigurationError, match=f"The secret {SECRET}") as refused:
        take_environment(Settings(agent_secret=SECRET), {})
    assert VALUE not in str(refused.value)


@pytest.mark.parametrize("text", ["KEY", "=x", "A2A_AUTH=none", "{"])
def test_parameters_of_another_form_are_refused(text: str) -> None:
    """The sentence names the variable that was read."""
    with pytest.raises(ConfigurationError, match="A2A_AGENT_ENVIRONMENT"):
        take_environment(Settings(agent_environment=text), {})


def test_variables_of_a_file(tmp_path: Path) -> None:
    """Quotes, `export` and comments are understood; what is set already stays."""
    (tmp_path / ".env").write_text(
        "# keys\n\nKEY=a=b \nexport QUOTED=' x # y '\nAWS_PROFILE=me\nSET=file\n"
    )
    environment = {"SET": "shell"}
    assert Dotenv(tmp_path, environment).read() == tmp_path / ".env"
    assert environment == {
        "KEY": "a=b",
        "QUOTED": " x # y ",
        "AWS_PROFILE": "me",
        "SET": "shell",
    }
    assert Dotenv(tmp_path / "nowhere", environment).read() is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        *(("KEY=a # mine", "a"), ("KEY=a#b", "a#b"), ("KEY= # none yet", ""), ("KEY=#", "#")),
        *(("KEY='a # b' # c", "a # b"), ('KEY="it\'s"', "it's"), ('KEY="a', '"a'), ("KEY='", "'")),
        *(('KEY="a"b"', 'a"b'), ('KEY = "a=b" ', "a=b"), ("KEY=a b", "a b"), ('KEY=""', "")),
    ],
)
@pytest.mark.parametrize("form", ["{}\n", "\ufeff{}\r\nOTHER=x\r\n"])
def test_values_of_a_file(tmp_path: Path, line: str, value: str, form: str) -> None:
    """` #` begins a comment outside of quotes; a mark of byte order and CR are no part of it."""
    (tmp_path / ".env").write_text(form.format(line), encoding="utf-8", newline="")
    environment: dict[str, str] = {}
    Dotenv(tmp_path, environment).read()
    assert environment["KEY"] == value


@pytest.mark.parametrize("line", [VALUE, "LD_PRELOAD=x", "A2A_AUTH=none", "1=2"])
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str) -> None:
    """File and line are named, the value is not shown, and nothing is set."""
    (tmp_path / ".env").write_text(f"KEY={VALUE}\n{line}\n")
    environment: dict[str, str] = {}
    with pytest.raises(ConfigurationError) as refused:
        Dotenv(tmp_path, environment).read()
    assert str(refused.value).startswith(f"{tmp_path / '.env'}, line 2: ")
    assert VALUE not in str(refused.value)
    assert environment == {}


def test_a_file_that_changes(tmp_path: Path) -> None:
    """What it has set follows it; what others have set stays, and so does all if it is damaged."""
    file, environment = tmp_path / ".env", {"SHELL": "mine"}
    dotenv = Dotenv(tmp_path, environment)
    assert dotenv.read() is None
    assert dotenv.changed() == []
    file.write_text("KEY=one\nGONE=x\nSHELL=file\nTAKEN=file\n")
    assert dotenv.changed() == [str(file)]
    dotenv.read()
    environment["TAKEN"] = "secret"
    file.write_text("KEY=two\nSHELL=other\nTAKEN=other\nNEW=y\n")
    dotenv.read()
    after = {"SHELL": "mine", "TAKEN": "secret", "KEY": "two", "NEW": "y"}
    assert environment == after
    file.write_text("KEY=three\nKEY\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        dotenv.read()
    assert (environment, dotenv.changed()) == (after, [])
    file.unlink()
    assert dotenv.changed() == [str(file)]
    assert dotenv.read() is None
    assert environment == {"SHELL": "mine", "TAKEN": "secret"}
