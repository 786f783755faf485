"""The agent of a deployment: found by its name, run with its turn's context variables.

Its own environment variables, keys out of a secret and settings that are no secret, are set in this
process before it is imported. The function's configuration has only the name of the secret. No
message shows a name or a value out of the secret: a user may have put a key where a name belongs.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from types import ModuleType
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.propagated import PropagatedVariables
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import digest
from a2a_serverless.worker.context import Worker, WorkerExecutor
from a2a_serverless.worker.loops import called
from a2a_serverless.worker.versions import KNOWN, unknown_version

RESERVED: Final = (
    *("A2A_*", "AWS_*", "BOTO*", "POWERTOOLS_*", "LAMBDA_*", "_LAMBDA_*", "_X_AMZN_*"),
    *("*_PROXY", "*_CA_BUNDLE", "SSL_CERT_*", "SSLKEYLOGFILE", "OPENSSL_*"),
    *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "LD_*", "PYTHON*", "PATH"),
)
"""Names, in any case, by which the runtime, its requests or its interpreter would be changed: those
of the runtime and of its libraries; of proxies and of trust in TLS; of the resolver; of what loads
code."""

_HOMES: Final = frozenset({"HOME", "USERPROFILE"})
"""Variables that say where `~` is."""
_AWS_FILES: Final = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
"""Variables that name files of AWS' settings and credentials, and the files without them."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def take_environment(
    settings: Settings, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set what A2A_AGENT_ENVIRONMENT and the secret A2A_AGENT_SECRET say; the secret wins.

    Raises:
        ConfigurationError: the secret cannot be read, or a name or a value is refused; nothing is
            set then.
    """
    variables = dict(_checked(_pairs(settings.agent_environment), "A2A_AGENT_ENVIRONMENT"))
    if settings.agent_secret:
        place = f"The secret {settings.agent_secret}"
        # It needs boto3, which agents without a secret, on a table of their own, can do without.
        from a2a_serverless import aws  # noqa: PLC0415

        text = aws.SecretText(settings.agent_secret).read_now()
        variables |= _checked(_members(text, place), place)
    if not _HOMES.isdisjoint(variables):
        _keep_aws_files(environment)
    environment.update(variables)


def _keep_aws_files(environment: MutableMapping[str, str]) -> None:
    """Name the files of AWS' settings by full paths, so that another home does not move them."""
    for name, default in _AWS_FILES.items():
        path = os.path.expandvars(environment.get(name) or default)
        environment[name] = str(Path(path).expanduser().absolute())


def check(name: str, value: Any, place: str, *, allowed: str = "") -> None:
    """Refuse a variable that a process may not be given.

    Args:
        name: of the variable.
        value: of the variable.
        place: the entry in question, for the message.
        allowed: an entry of `RESERVED` whose names are not refused here.

    Raises:
        ConfigurationError: one sentence names the place and the rule.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{place} has no name of a variable: letters, digits and _, no digit first."
        )
    reserved = [each for each in RESERVED if each != allowed]
    is_allowed = fnmatchcase(name.upper(), allowed)
    if not is_allowed and any(fnmatchcase(name.upper(), each) for each in reserved):
        names = ", ".join(reserved)
        raise ConfigurationError(
            f"{place} has a reserved name: {names} are not the agent's; what is to hold for the"
            " whole process is set where it is started."
        )
    if not _is_text(value):
        raise ConfigurationError(f"{place} has a value that is no text.")


def _checked(pairs: Iterable[tuple[str, Any]], place: str) -> Iterator[tuple[str, str]]:
    """Yield names and values that a process may be given; entries are named by their number."""
    for number, (name, value) in enumerate(pairs, 1):
        check(name, value, f"{place}: entry {number}")
        yield name, value


def _is_text(value: Any) -> bool:
    """Return True if a process can have a value: half of a surrogate pair has no bytes."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pairs(text: str) -> Iterable[tuple[str, Any]]:
    """Return the entries of `{"NAME": "value"}`, or of a list `NAME=value, NAME=value`."""
    if text.lstrip().startswith("{"):
        return _members(text, "A2A_AGENT_ENVIRONMENT")
    entries = (entry.strip() for entry in text.split(",") if entry.strip())
    split = (entry.partition("=") for entry in entries)
    return [(name.strip() if equals else "", value.strip()) for name, equals, value in split]


def _members(text: str, place: str) -> list[tuple[str, Any]]:
    try:
        members = json.loads(text)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ConfigurationError(f'{place} is not of the form {{"NAME": "value"}}.')
    return list(members.items())


logger = logging.getLogger(__name__)

SET_VARIABLE: Final = "set {}, on your machine in .env, where it is deployed in AgentSecretArn"
"""What to do about a variable that the agent misses."""
_VARIABLE: Final = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_SECRETS: Final = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


_PARALLEL: Final = (
    "The agent {!r} keeps a state of its conversations, whose turns have to run one after the"
    " other: deploy the stack with the parameter Conversations=serial, or set"
    " A2A_CONVERSATIONS=serial for each process."
)


def load_agent(reference: str, *, folder: Path | None = None) -> AgentExecutor:
    """Return the agent that `FILE.py:NAME` names.

    It is a class or an instance of `AgentExecutor` or `Worker`; a class is called without
    arguments. A file without a name stands for its `agent`. A relative FILE is looked for in
    `folder`, by default the working directory. The file's own folder joins the import path.

    Raises:
        ConfigurationError: it cannot be used; one sentence names the file, the name and the reason.
    """
    reference = f"{reference}:agent" if reference.endswith(".py") else reference
    path, separator, name = reference.rpartition(":")
    if not (separator and name and path.endswith(".py")):
        raise ConfigurationError(f"The agent {reference!r} is not of the form FILE.py:NAME.")
    module = _import((folder or Path()) / path, reference)
    found = getattr(module, name, None)
    if found is None:
        has = [each for each, value in vars(module).items() if _is_agent(value, module)]
        way_out = (
            f", but {', '.join(has)}: write `{name} = {has[0]}`, or name {path}:{has[-1]}"
            if has
            else f": write a class that derives from Worker, and `{name} = ITS_NAME()`"
        )
        raise ConfigurationError(
            f"The agent {reference!r} cannot be used: {path} has no {name!r}{way_out}."
        )
    return _executor(found, reference, Path(str(module.__file__)).parent)


def deployed_agent(
    reference: str,
    *,
    folder: Path,
    prepare: Callable[[], None] = lambda: None,
    is_serial: bool = True,
) -> AgentExecutor:
    """Return the agent for a Lambda function, which starts even if the agent cannot be loaded.

    `prepare` is called before each attempt to load the agent, and raises ConfigurationError if the
    agent cannot be loaded yet. An agent that keeps conversations cannot be used unless turns of one
    run one after the other (`is_serial`).

    An agent that cannot be loaded fails its tasks, each after its attempts; every attempt tries to
    load it again. If the function did not start instead, the operations would be delivered again
    for hours, until they are dead letters, and their tasks would stay submitted. The reason is
    logged once in a process, and each failure counts in `AgentNotLoaded`.
    """
    load = partial(_counted_load, reference, folder, prepare, is_serial=is_serial)
    try:
        return load()
    except ConfigurationError:
        logger.exception("Agent not loaded", extra={"action": "agent_not_loaded"})
        return _UnloadedAgent(load)


def pulling_agent(
    reference: str, *, prepare: Callable[[], None], is_serial: bool = True
) -> AgentExecutor:
    """Return the agent for a worker in pull mode, which does not start if it cannot be loaded.

    `prepare` is called before the agent is loaded; `is_serial` is as for `deployed_agent`. A
    failure counts in `AgentNotLoaded`.

    Raises:
        ConfigurationError: as `load_agent`.
    """
    try:
        return _counted_load(reference, Path(), prepare, is_serial=is_serial)
    except ConfigurationError:
        metrics.flush()  # the process ends with this error, before it has begun to flush by itself
        raise


class PropagatingAgent(AgentExecutor):
    """Runs an agent with the context variables of one turn.

    Each call runs in an asyncio task of its own, whose context ends with it: the agent sees the
    variables, but neither another turn nor the worker does.
    """

    def __init__(
        self, agent: AgentExecutor, propagated: PropagatedVariables, captured: str
    ) -> None:
        self._agent = agent
        self._propagated = propagated
        self._captured = captured
        self.handler = handler_of(agent)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._propagated.restore(self._captured)
        await called(self._agent.execute, context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._propagated.restore(self._captured)
        await called(self._agent.cancel, context, event_queue)


def handler_of(agent: AgentExecutor) -> Callable[..., Any]:
    """Return the method that the agent's author has written for a turn: `execute` or `handle`.

    An executor that runs another one names that one's method as its `handler`.
    """
    handler: Callable[..., Any] = getattr(agent, "handler", agent.execute)
    return handler


class _UnloadedAgent(AgentExecutor):
    """Loads the agent when it is needed, until that succeeds, and raises the reason if it fails."""

    def __init__(self, load: Callable[[], AgentExecutor]) -> None:
        self._loads = load
        self._lock = threading.Lock()
        self._agent: AgentExecutor | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._load().execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._load().cancel(context, event_queue)

    def _load(self) -> AgentExecutor:
        with self._lock:
            if self._agent is None:
                self._agent = self._loads()
            return self._agent


def _counted_load(
    reference: str, folder: Path, prepare: Callable[[], None], *, is_serial: bool
) -> AgentExecutor:
    try:
        prepare()
        agent = load_agent(reference, folder=folder)
        if not is_serial:
            _refuse_keeping(agent, reference)
    except ConfigurationError:
        metrics.count("AgentNotLoaded")
        raise
    return agent


def _refuse_keeping(agent: AgentExecutor, reference: str) -> None:
    """Raise ConfigurationError if an agent keeps conversations."""
    if keeps_conversation(agent):
        raise ConfigurationError(_PARALLEL.format(reference))


def keeps_conversation(agent: AgentExecutor) -> bool:
    """Return True if an agent declares that it keeps a state of its conversations."""
    return bool(getattr(agent, "keeps_conversation", False))


def _import(path: Path, reference: str) -> ModuleType:
    named, path = path, path.resolve()
    name = f"a2a_agent_{digest('agent', str(path)).replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        msg = f"The agent {reference!r} cannot be used: there is no file {named}."
        raise ConfigurationError(msg)
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # as `import` does: dataclasses and pickle look the module up there
    try:
        with _users_code(reference, "cannot be imported", path.parent):
            spec.loader.exec_module(module)
    except ConfigurationError:
        del sys.modules[name]
        raise
    return module


def _executor(found: Any, reference: str, folder: Path) -> AgentExecutor:
    if inspect.isclass(found) and issubclass(found, AgentExecutor | Worker):
        with _users_code(reference, "cannot be made", folder, made=found):
            found = found()
    with _users_code(reference, "cannot be adapted", folder):
        agent = executor_of(found)
    if agent is None:
        raise ConfigurationError(f"The agent {reference!r} is {what_is(found)}.")
    return agent


def executor_of(found: Any) -> AgentExecutor | None:
    """Return what runs an agent: itself, a Worker's executor, or its framework's adapter.

    None: it is none of them, or of two frameworks; `what_is` says what it is.
    """
    adapters = _adapters_of(found)
    is_ours = isinstance(found, Worker | AgentExecutor)  # also one that a module `agents` defines
    if not is_ours and len(adapters) == 1:
        module, name, options = adapters[0]
        make = getattr(importlib.import_module(f"a2a_serverless.frameworks.{module}"), name)
        found = make(found, **options(found))
    if isinstance(found, Worker):
        return WorkerExecutor(found)
    return found if isinstance(found, AgentExecutor) else None


def _is_agent(found: Any, module: ModuleType) -> bool:
    if inspect.isclass(found):
        return found.__module__ == module.__name__ and issubclass(found, Worker | AgentExecutor)
    return isinstance(found, Worker | AgentExecutor) or len(_adapters_of(found)) == 1


def what_is(found: Any) -> str:
    """Return what is wrong with an object that is no agent, and the way out if it is known."""
    if adapters := _adapters_of(found):
        named = " and ".join(name for _, name, _ in adapters)
        module, first, _ = adapters[0]
        return (
            f"an agent of {len(adapters)} frameworks, for which there are {named}: write the one"
            f" that is meant, `{first}(…)`, from a2a_serverless.frameworks.{module}"
        )
    names = {*_names_of(found), *(map(_name_of, found.__mro__) if inspect.isclass(found) else ())}
    for name, way_out in _WAYS_OUT.items():
        if name in names:
            return way_out
    if inspect.isclass(found) and not names.isdisjoint(_FRAMEWORKS):
        return f"a class: write `agent = {found.__name__}(…)`"
    what = found.__name__ if inspect.isclass(found) else f"of the type {type(found).__name__}"
    return (
        f"{what}: neither an AgentExecutor nor a Worker, nor an agent of LangGraph, Pydantic AI,"
        " the OpenAI Agents SDK or the ADK"
    )


def _adapters_of(found: Any) -> list[_Adapter]:
    names = (name for name in _names_of(found) if name in _FRAMEWORKS)
    return list(dict.fromkeys(_FRAMEWORKS[name] for name in names))


def _names_of(found: Any) -> Iterator[tuple[str, str]]:
    return map(_name_of, type(found).__mro__)


def _name_of(cls: type) -> tuple[str, str]:
    """Return the package and the name of a class; the package of Google's ADK is `google`."""
    return cls.__module__.partition(".")[0], cls.__name__


def _no_options(_: Any) -> dict[str, Any]:
    return {}


def _named(agent: Any) -> dict[str, Any]:
    return {"app_name": agent.name}


_Adapter = tuple[str, str, Callable[[Any], dict[str, Any]]]

_FRAMEWORKS: Final[Mapping[tuple[str, str], _Adapter]] = {
    ("langgraph", "Pregel"): ("langgraph", "LangGraphWorker", _no_options),
    ("pydantic_ai", "AbstractAgent"): ("pydantic_ai", "PydanticAIWorker", _no_options),
    ("agents", "Agent"): ("openai_agents", "OpenAIAgentsWorker", _no_options),
    ("google", "BaseAgent"): ("adk", "AdkExecutor", _named),
    ("google", "Workflow"): ("adk", "AdkExecutor", _named),
    ("google", "App"): ("adk", "AdkExecutor", _named),
}
"""By package and class of a framework's agent: the module and the name of its adapter, and its
options. No framework is imported to recognise its agents."""

_WAYS_OUT: Final[Mapping[tuple[str, str], str]] = {
    ("langgraph", "StateGraph"): (
        "a graph of LangGraph that is not compiled: write `agent = graph.compile()`"
    ),
    ("langgraph", "Pregel"): "a class of LangGraph: name a compiled graph",
    ("langchain_core", "Runnable"): (
        "a runnable of LangChain and no graph: name the graph itself, or call its `ainvoke` in a"
        " Worker"
    ),
    ("builtins", "function"): (
        "a function: call it, `agent = make_agent()`; one that makes an agent of Strands is given"
        " to StrandsWorker; one that answers is the `handle` of a Worker"
    ),
    ("strands", "Agent"): (
        "an agent of Strands, which is one conversation: write `agent = StrandsWorker(lambda:"
        " Agent(…))`, from a2a_serverless.frameworks.strands"
    ),
    **{
        name: f"{what}: `a2a-serverless docs patterns` has the Worker that runs it"
        for name, what in {
            ("ag2", "Agent"): "an agent of AG2",
            ("agno", "Agent"): "an agent of Agno",
            ("autogen_agentchat", "BaseChatAgent"): "an agent of AutoGen",
            ("autogen_agentchat", "BaseGroupChat"): "a team of AutoGen",
            ("crewai", "Crew"): "a crew of CrewAI",
            ("llama_index", "BaseWorkflowAgent"): "an agent of LlamaIndex",
            ("smolagents", "MultiStepAgent"): "an agent of smolagents",
        }.items()
    },
}
"""What an object is that has no adapter, and what to write instead."""


@contextmanager
def _users_code(
    reference: str, what: str, folder: Path, *, made: type | None = None
) -> Iterator[None]:
    """Raise ConfigurationError for whatever the user's code raises: the start stops with it.

    The message names the file and the line, also of a module in `folder` that the agent imports;
    where none has raised, as with a missing argument, those of the class that was `made`.
    """
    try:
        yield
    except BaseException as error:
        # Ctrl-C reaches the main thread alone; elsewhere it is the user's code that raises this.
        if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
            raise
        where = (_place(error, folder) or _place_of_class(made)) + _way_out(error)
        msg = f"The agent {reference!r} {what}: {_said(error).removesuffix('.')}{where}."
        raise ConfigurationError(msg) from error


def _said(error: BaseException) -> str:
    """Return kind and text of an error of the user's, in one line."""
    kind = type(error).__name__
    try:
        said = (error.msg or "") if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - its own `__str__` is the user's code, too
        said = "its text cannot be read"
    return f"{kind}: {' '.join(said.split())}" if said.strip() else kind


def _way_out(error: BaseException) -> str:
    """Return what to do about a module or a variable that is not there; empty for other errors."""
    if isinstance(error, ImportError) and (unknown := _unknown_version(error)):
        return f": {unknown}"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return ": the agent's file is in no package, write `import NAME`"
    if isinstance(error, ModuleNotFoundError):
        return ": correct the import, or install the package and name it in requirements.in"
    name = missing_variable(error)
    return f": {SET_VARIABLE.format(name)}" if name else ""


def _unknown_version(error: ImportError) -> str:
    """Return a sentence about the framework's version if an adapter of ours has not found a name.

    Its package is there, but another version of it than the adapter knows.
    """
    frames = traceback.extract_tb(error.__traceback__)
    adapters = (Path(each.filename) for each in frames)
    names = (path.stem for path in adapters if path.parent == _ADAPTERS)
    return next((unknown_version(name) for name in names if name in KNOWN), "")


_ADAPTERS: Final = Path(__file__).parents[1] / "frameworks"


def missing_variable(error: BaseException) -> str:
    """Return the variable that an error asks for and that is not set; empty if it asks for none.

    Clients of models name it in their text: as a key, or beside the word environment.
    """
    if isinstance(error, KeyError) and error.__traceback__ is not None:
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if innermost.f_code is type(os.environ).__getitem__.__code__:
            return str(error.args[0])
    said = _said(error)
    names = [name for name in _VARIABLE.findall(said) if not os.environ.get(name)]
    if "environment" not in said.lower():
        names = [name for name in names if name.endswith(_SECRETS)]
    return names[0] if names else ""


def _place(error: BaseException, folder: Path) -> str:
    """Return ` (FILE, line N)` for the innermost line of the user's that an error came from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
        and "site-packages" not in Path(frame.filename).relative_to(folder).parts
    ]
    return f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else ""


def _place_of_class(made: type | None) -> str:
    try:
        return f" ({inspect.getfile(made)}, line {inspect.getsourcelines(made)[1]})" if made else ""
    except (OSError, TypeError):  # a class that was not written in a file
        return ""
