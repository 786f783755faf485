"""The agent's variables, out of a secret, parameters or `.env`; and the agent of a file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from importlib.util import find_spec
from pathlib import Path

import pytest
from a2a.server.agent_execution import AgentExecutor
from aws_lambda_powertools.shared import constants
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.session import Session

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless.worker import agents
from a2a_serverless.worker.agents import check, deployed_agent, load_agent, take_environment
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless_tools.local import dotenv
from tests.support import pages
from tests.support.messages import said
from tests.support.present import present
from tests.support.workers import S
from tests.unit.worker.stand import Log, Patch, actions, run

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
    modules = Path(present(present(find_spec(package)).origin)).parent.rglob("*.py")
    return {name for module in modules for name in re.findall(read, module.read_text("utf-8"))}


OWN = {"AWS_EXECUTION_ENV", "REQUESTS_CA_BUNDLE", "SSLKEYLOGFILE", "_X_AMZN_TRACE_ID"}
"""Some of the variables that are found."""
HARMLESS = {"FOO"}
"""An example in a docstring."""


def test_what_the_runtimes_libraries_read_is_not_the_agents() -> None:
    """Each variable that a client of AWS, TLS or Powertools reads is refused."""
    of_botocore = [names for _, names, *_ in BOTOCORE_DEFAUT_SESSION_VARIABLES.values() if names]
    names = {each for one in of_botocore for each in ([one] if isinstance(one, str) else one)}
    names |= {v for n, v in vars(constants).items() if n.endswith("_ENV")}
    found = set().union(*map(variables_read, ("botocore", "urllib3", "awslambdaric")))
    assert found >= OWN
    paths = ssl.get_default_verify_paths()
    names |= found | {paths.openssl_cafile_env, paths.openssl_capath_env}
    legacy = {"LOG_LEVEL"}  # of a logger of Powertools that the runtime does not use
    assert [name for name in names - HARMLESS - legacy if not is_refused(name)] == []


def test_the_page_has_the_names_that_are_refused() -> None:
    """The page `model-key` lists them all."""
    listed = pages.section("Names that are refused").partition("\n\n`HOME`")[0]
    assert set(re.findall("`(.+?)`", listed)) == set(agents.RESERVED)


def is_refused(name: str) -> bool:
    """Whether the agent's settings may not have a variable."""
    try:
        check(name, "x", "it")
    except ConfigurationError:
        return True
    return False


def test_what_agents_need_is_taken() -> None:
    """Names of the agent's own libraries are no names of the runtime's."""
    names = "HOME TZ LOG_LEVEL OPENAI_API_KEY OTEL_SERVICE_NAME MY_SSL_MODE PROXY"
    assert [name for name in names.split() if is_refused(name)] == []


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


# -- the agent that `FILE.py:NAME` names ---------------------------------------------------------


SOURCE = """
from dataclasses import dataclass
from a2a.server.agent_execution import AgentExecutor
from a2a_serverless.worker import Worker
from neighbour import NAME

class Executor(AgentExecutor):
    async def execute(self, context, event_queue): ...
    async def cancel(self, context, event_queue): ...

@dataclass
class Waiter(Worker):
    name: str = NAME
    async def handle(self, ctx): ...

class Demanding(Executor):
    def __init__(self, model): ...

class Abstract(Worker): ...

class Keyless(Executor):
    def __init__(self):
        raise RuntimeError("no key")

class Stranger: ...

def factory():
    return Executor()

executor, waiter, number = Executor(), Waiter(), 7
"""
MUTE = """
class Mute(BaseException):
    def __str__(self):
        raise ValueError

raise Mute
"""
KEEPING = """
from a2a_serverless.worker import Worker

class Keeping(Worker):
    keeps_conversation = True

    async def handle(self, ctx):
        await ctx.respond("hello")

agent = Keeping()
"""
ASKING = """
class Asking(Worker):
    async def handle(self, ctx):
        await ctx.request_input("which?")

agent = Asking()
"""


FILES = {
    "neighbour": "NAME = 'x'\n",
    "agent_file": SOURCE,
    "broken": "raise ValueError('no key\\nset')\n",
    "typo": "def agent(:\n",
    "needy": "import a_framework_that_is_not_there\n",
    "helped": "from os import path\n\nimport helper_with_an_error\n",
    "helper_with_an_error": "import json\n\njson.loads('{')\n",
    "mute": MUTE,
    "relative": "from . import helper\n",
    "keeping": KEEPING,
    "garbled": "import helper_with_a_typo\n",
    "helper_with_a_typo": "\nagent = = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in FILES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


NEITHER = (
    ": neither an AgentExecutor nor a Worker, nor an agent of LangGraph, Pydantic AI, the OpenAI"
    " Agents SDK or the ADK."
)
FUNCTION = (
    "a function: call it, `agent = make_agent()`; one that makes an agent of Strands is given to"
    " StrandsWorker; one that answers is the `handle` of a Worker."
)
THERE = "Executor, Waiter, Demanding, Abstract, Keyless, executor, waiter"


@pytest.mark.parametrize("name", ["Executor", "executor", "Waiter", "waiter"])
def test_what_is_named_becomes_an_executor(folder: Path, name: str) -> None:
    """A class is called without arguments; a Worker runs behind the SDK's interface."""
    agent = load_agent(f"{folder}/agent_file.py:{name}")
    assert isinstance(agent, AgentExecutor)
    assert isinstance(agent, WorkerExecutor) is (name.lower() == "waiter")


def test_a_file_alone_names_its_agent(folder: Path) -> None:
    """What the file has instead is named."""
    (folder / "mine.py").write_text("from agent_file import waiter as agent\n")
    assert isinstance(load_agent(f"{folder}/mine.py"), WorkerExecutor)
    with pytest.raises(ConfigurationError, match=r"agent_file\.py has no 'agent', but"):
        load_agent(f"{folder}/agent_file.py")


IS_NO_AGENT = {
    "agent": "is not of the form FILE.py:NAME.",
    "@/none.py:a": "cannot be used: there is no file @/none.py.",
    "@/neighbour.py:agent": "cannot be used: @/neighbour.py has no 'agent': write a class that"
    " derives from Worker, and `agent = ITS_NAME()`.",
    "@/agent_file.py:other": f"cannot be used: @/agent_file.py has no 'other', but {THERE}: write"
    " `other = Executor`, or name @/agent_file.py:waiter.",
    "@/agent_file.py:number": f"is of the type int{NEITHER}",
    "@/agent_file.py:Stranger": f"is Stranger{NEITHER}",
    "@/agent_file.py:factory": f"is {FUNCTION}",
}
CANNOT_BE_IMPORTED = {
    "broken": "ValueError: no key set (@/broken.py, line 1).",
    "mute": "Mute: its text cannot be read (@/mute.py, line 6).",
    "typo": "SyntaxError: invalid syntax (@/typo.py, line 1).",
    "helped": "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2"
    " (char 1) (@/helper_with_an_error.py, line 3).",
    "relative": "ImportError: attempted relative import with no known parent package"
    " (@/relative.py, line 1): the agent's file is in no package, write `import NAME`.",
    "garbled": "SyntaxError: invalid syntax (@/helper_with_a_typo.py, line 2).",
    "needy": "ModuleNotFoundError: No module named 'a_framework_that_is_not_there' (@/needy.py,"
    " line 1): correct the import, or install the package and name it in requirements.in.",
}
IS_NO_AGENT |= {
    f"@/{file}.py:agent": f"cannot be imported: {why}" for file, why in CANNOT_BE_IMPORTED.items()
}


@pytest.mark.parametrize(("reference", "sentence"), IS_NO_AGENT.items())
def test_what_is_no_agent_is_named(folder: Path, reference: str, sentence: str) -> None:
    """An agent that cannot be loaded is refused with one sentence: agent, reason, file and line."""
    reference = reference.replace("@", str(folder))
    with pytest.raises(ConfigurationError) as raised:
        load_agent(reference)
    said = f"The agent '{reference}' {sentence}".replace("@", str(folder))
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("name", "mark", "why"),
    [
        ("Demanding", "class Demanding(", "TypeError: .+"),
        ("Abstract", "class Abstract(", "TypeError: .+"),
        ("Keyless", "raise RuntimeError", "RuntimeError: no key .+"),
    ],
)
def test_an_agent_that_is_not_made_is_named(folder: Path, name: str, mark: str, why: str) -> None:
    """A class that wants arguments, misses methods or raises stops the start: reason and line."""
    line = SOURCE[: SOURCE.index(mark)].count("\n") + 1
    says = rf"agent_file.py:{name}' cannot be made: {why}_file.py, line {line}\)\.$"
    with pytest.raises(ConfigurationError, match=says):
        load_agent(f"{folder}/agent_file.py:{name}")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import os; os.environ['region']", "region"),
        ("import os; os.environ['MODEL_REGION']", "MODEL_REGION"),
        ("raise ValueError('Set the `MODEL_URL` environment variable or pass it')", "MODEL_URL"),
        ("raise RuntimeError('no PROVIDER_API_KEY')", "PROVIDER_API_KEY"),
        ("raise SystemExit('SET_ALREADY_KEY or PROVIDER_API_KEY')", "PROVIDER_API_KEY"),
        ("raise ValueError('no TASK_STATE')", ""),
        ("raise ValueError('the SET_ALREADY_KEY is wrong')", ""),
        ("{}['region']", ""),
    ],
)
def test_a_variable_that_an_agent_misses_is_named(
    tmp_path: Path, monkeypatch: Patch, line: str, name: str
) -> None:
    """With the places to set it; what is set is not missing."""
    monkeypatch.setenv("SET_ALREADY_KEY", "x")
    (tmp_path / "keyless.py").write_text(line + "\n")
    with pytest.raises(ConfigurationError) as raised:
        load_agent(f"{tmp_path}/keyless.py:agent")
    way_out = f": set {name}, on your machine in .env, where it is deployed in AgentSecretArn."
    assert str(raised.value).endswith(f"keyless.py, line 1){way_out if name else '.'}")


async def test_a_deployed_agent_that_cannot_load_fails_its_tasks(folder: Path, caplog: Log) -> None:
    """The tasks of an agent that cannot be loaded fail after their attempts."""
    stand, head = await run(deployed_agent("broken.py:agent", folder=folder))
    assert head.state == S.TASK_STATE_FAILED
    assert (said(await stand.shown()), await stand.artifacts()) == (["hello"], {})
    reason = "The agent 'broken.py:agent' cannot be imported: ValueError: no key set ("
    assert actions(caplog) == ["agent_not_loaded", "retry", "retry", "gave_up"]
    assert caplog.text.count(reason) == 4


@pytest.mark.parametrize("is_serial", [True, False])
async def test_an_agent_that_keeps_conversations_needs_their_order(
    folder: Path, caplog: Log, *, is_serial: bool
) -> None:
    """A deployment whose turns may overlap is refused with the parameter to set."""
    agent = deployed_agent("keeping.py:agent", folder=folder, is_serial=is_serial)
    assert ("the parameter Conversations=serial" in caplog.text) is not is_serial
    _, head = await run(agent, max_attempts=1)
    assert head.state == (S.TASK_STATE_COMPLETED if is_serial else S.TASK_STATE_FAILED)


async def test_an_interrupt_in_a_thread_is_the_users(tmp_path: Path) -> None:
    """Ctrl-C ends the process by its main thread; in others the file itself has raised it."""
    (tmp_path / "agent.py").write_text("raise KeyboardInterrupt\n")
    agent = f"{tmp_path}/agent.py:agent"
    with pytest.raises(KeyboardInterrupt):
        load_agent(agent)
    with pytest.raises(ConfigurationError, match=r"imported: KeyboardInterrupt \("):
        await asyncio.to_thread(load_agent, agent)


async def test_a_deployed_agent_is_loaded_once_it_can_be(folder: Path) -> None:
    """The turns after the first that could load it have the same agent, and its module's state."""
    secret = [ConfigurationError("The secret cannot be read."), ConfigurationError("Still not.")]
    prepared: list[str] = []

    def prepare() -> None:
        if secret:
            raise secret.pop()
        prepared.append("")

    (folder / "late.py").write_text(SOURCE + ASKING)
    stand, head = await run(deployed_agent("late.py:agent", folder=folder, prepare=prepare))
    assert head.state == S.TASK_STATE_INPUT_REQUIRED
    await stand.cancel()
    await stand.work()
    await stand.send("another task")
    assert ((await stand.work()).state, prepared) == (S.TASK_STATE_INPUT_REQUIRED, [""])
