"""The agent's variables: out of a secret, out of the deployment's parameters, out of `.env`."""

from __future__ import annotations

import json
import os
import re
import ssl
from importlib.util import find_spec
from pathlib import Path

import pytest
from aws_lambda_powertools.shared import constants
from botocore import configprovider
from botocore.session import Session

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless.worker.agents import RESERVED, check, take_environment
from a2a_serverless_tools.local import dotenv
from tests.support import pages
from tests.unit.worker.stand import Patch

SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:agent"
VALUE = "sk-a-key-that-no-message-shows"


@pytest.fixture
def secret(monkeypatch: Patch) -> dict[str, str]:
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
def test_variables_of_the_parameters_and_of_the_secret(secret: dict[str, str], text: str) -> None:
    """A JSON object and a list of pairs say the same; the secret's entries win, as they are."""
    environment: dict[str, str] = {"PATH": "/bin"}
    take_environment(Settings(agent_environment=text), environment)
    assert environment == {"PATH": "/bin", "REGION": "eu", "KEY": "x"}
    entries = {"KEY": VALUE, "_PEM": "line\nline, with = and spaces "}
    secret[SECRET] = json.dumps(entries)
    take_environment(Settings(agent_secret=SECRET, agent_environment=text), environment)
    assert environment == {"PATH": "/bin", "REGION": "eu", **entries}


@pytest.mark.parametrize("named", ["", "$HOME/.aws/config"])
def test_a_home_of_the_agents_does_not_move_the_files_of_aws(
    named: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Requests go on as they were set where the process was started."""
    for home, url in (("old", "http://127.0.0.1:1"), ("new", "http://127.0.0.1:2")):
        (tmp_path / home / ".aws").mkdir(parents=True)
        (tmp_path / home / ".aws/config").write_text(f"[default]\nendpoint_url = {url}\n")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE"):
        monkeypatch.setenv(name, "")  # so that it is taken back in the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "old"))
    if named:
        monkeypatch.setenv("AWS_CONFIG_FILE", named)
    take_environment(Settings(agent_environment=f"HOME={tmp_path / 'new'}"))
    assert os.environ["HOME"] == str(tmp_path / "new")
    assert Session().full_config["profiles"]["default"]["endpoint_url"] == "http://127.0.0.1:1"
    credentials = os.environ["AWS_SHARED_CREDENTIALS_FILE"]
    assert credentials == str(tmp_path / "old/.aws/credentials")


REFUSED = """
    A2A_AUTH AWS_ACCESS_KEY_ID LD_PRELOAD PYTHONPATH PATH path aws_region HTTP_PROXY https_proxy
    All_Proxy no_proxy ftp_proxy SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE OPENSSL_CONF
    OPENSSL_MODULES REQUESTS_CA_BUNDLE CURL_CA_BUNDLE POWERTOOLS_LOG_LEVEL BOTO_CONFIG
    LAMBDA_TASK_ROOT _LAMBDA_TELEMETRY_LOG_FD _X_AMZN_TRACE_ID HOSTALIASES LOCALDOMAIN RES_OPTIONS
"""


@pytest.mark.parametrize("name", [*REFUSED.split(), "", "1ST", "A B", "A=B", "Ä", f"{VALUE}\n"])
def test_a_refused_name_sets_nothing_and_is_not_shown(secret: dict[str, str], name: str) -> None:
    """A secret with a refused name sets no variable, and the error shows no name and no value."""
    secret[SECRET] = json.dumps({"GOOD": VALUE, name: VALUE})
    environment: dict[str, str] = {}
    with pytest.raises(ConfigurationError) as refused:
        take_environment(Settings(agent_secret=SECRET, agent_environment="B=c"), environment)
    assert str(refused.value).startswith(f"The secret {SECRET}: entry 2 has ")
    assert VALUE not in str(refused.value)
    assert environment == {}


def variables_read(package: str) -> set[str]:
    """The names of variables that the modules of a package read, as they stand there."""
    read = r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*['"]([A-Za-z_0-9]+)['"]"""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    modules = Path(found.origin).parent.rglob("*.py")
    return {name for module in modules for name in re.findall(read, module.read_text("utf-8"))}


OWN = {"AWS_EXECUTION_ENV", "REQUESTS_CA_BUNDLE", "SSLKEYLOGFILE", "_X_AMZN_TRACE_ID"}
"""Some of the variables that are found."""
HARMLESS = {"FOO"}
"""An example in a docstring."""


def test_what_the_runtimes_libraries_read_is_not_the_agents() -> None:
    """Each variable that a client of AWS, TLS or Powertools reads is refused."""
    configured = {
        name
        for _, names, *_ in configprovider.BOTOCORE_DEFAUT_SESSION_VARIABLES.values()
        for name in ([names] if isinstance(names, str) else names or [])
    }
    of_powertools = {v for n, v in vars(constants).items() if n.endswith("_ENV")}
    found = {
        name
        for package in ("botocore", "urllib3", "awslambdaric")
        for name in variables_read(package)
    }
    assert found >= OWN
    paths = ssl.get_default_verify_paths()
    of_python = {paths.openssl_cafile_env, paths.openssl_capath_env}
    legacy = {"LOG_LEVEL"}  # of a logger of Powertools that the runtime does not use
    names = configured | of_powertools | found | of_python
    taken = {name for name in names - HARMLESS - legacy if not is_refused(name)}
    assert taken == set()


def test_the_page_has_the_names_that_are_refused() -> None:
    """The page `model-key` lists them all."""
    listed = pages.section("Names that are refused").partition("\n\n`HOME`")[0]
    assert set(re.findall("`(.+?)`", listed)) == set(RESERVED)


def is_refused(name: str) -> bool:
    """Whether the agent's settings may not have a variable."""
    try:
        check(name, "x", "it")
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize(
    "name",
    ["HOME", "TZ", "LOG_LEVEL", "OPENAI_API_KEY", "OTEL_SERVICE_NAME", "MY_SSL_MODE", "PROXY"],
)
def test_what_agents_need_is_taken(name: str) -> None:
    """Names of the agent's own libraries are no names of the runtime's."""
    assert not is_refused(name)


@pytest.mark.parametrize(
    "text", ["", "[]", VALUE, '{"A": 1}', '{"A": "\\u0000"}', '{"A": "\\ud800"}', "{"]
)
def test_a_secret_of_another_form_is_refused(secret: dict[str, str], text: str) -> None:
    """The sentence names the secret, or the variable that was read, and nothing of the text."""
    secret[SECRET] = text
    with pytest.raises(ConfigurationError, match=f"The secret {SECRET}") as refused:
        take_environment(Settings(agent_secret=SECRET), {})
    assert VALUE not in str(refused.value)
    for parameters in ("KEY", "=x", "A2A_AUTH=none", "{"):
        with pytest.raises(ConfigurationError, match="A2A_AGENT_ENVIRONMENT"):
            take_environment(Settings(agent_environment=parameters), {})


def test_variables_of_a_file(tmp_path: Path) -> None:
    """Quotes, `export` and comments are understood; what is set already stays."""
    (tmp_path / ".env").write_text(
        "# keys\n\nKEY=a=b \nexport QUOTED=' x # y '\nAWS_PROFILE=me\nSET=file\n"
    )
    environment = {"SET": "shell"}
    assert dotenv.read(tmp_path, environment) == tmp_path / ".env"
    assert environment == {"KEY": "a=b", "QUOTED": " x # y ", "AWS_PROFILE": "me", "SET": "shell"}
    assert dotenv.read(tmp_path / "nowhere", environment) is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        *(("KEY=a # mine", "a"), ("KEY=a#b", "a#b"), ("KEY= # none yet", ""), ("KEY=#", "#")),
        *(("KEY='a # b' # c", "a # b"), ('KEY="it\'s"', "it's"), ('KEY="$HOME"', "$HOME")),
        *(('KEY="a\\nb"', "a\nb"), ('KEY = "a=b" ', "a=b"), ("KEY=a b", "a b"), ('KEY=""', "")),
        *(('KEY="-----BEGIN\n# =\n-----END"', "-----BEGIN\n# =\n-----END"), ("KEY='\n'", "\n")),
    ],
)
def test_values_of_a_file(tmp_path: Path, line: str, value: str) -> None:
    """Outside of quotes ` #` begins a comment, in them a value may have lines; `$` is itself."""
    for form in ("{}\n", "\ufeff{}\r\nOTHER=x\r\n"):
        (tmp_path / ".env").write_text(form.format(line), encoding="utf-8", newline="")
        environment: dict[str, str] = {}
        dotenv.read(tmp_path, environment)
        assert environment["KEY"] == value, form


@pytest.mark.parametrize(
    "line", [VALUE, "LD_PRELOAD=x", "A2A_AUTH=none", "1=2", f'B="{VALUE}', f"B='{VALUE}\nC=x"]
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str) -> None:
    """File and line are named, the value is not shown, and nothing is set."""
    (tmp_path / ".env").write_text(f"\nKEY='{VALUE}\n'\n\n{line}\n")
    environment: dict[str, str] = {}
    with pytest.raises(ConfigurationError) as refused:
        dotenv.read(tmp_path, environment)
    assert str(refused.value).startswith(f"{tmp_path / '.env'}, line 5: ")
    assert VALUE not in str(refused.value)
    assert environment == {}
