"""`send`, against servers on real sockets: the official SDK's, in four forms, and ours."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from a2a_serverless.settings import Settings
from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import answers, send
from a2a_serverless_tools.local import own_file
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.own_file import held
from a2a_serverless_tools.local.sockets import bind
from a2a_serverless_tools.local.stack import Options, Stack
from tests.support.said_agent import PICTURE, Said
from tests.unit.cli.conftest import Run

AGENT = f"{Path(__file__).parents[2] / 'support/said_agent.py'}:agent"
CARD = AgentCard(
    name="Said",
    description="Does what it is told.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain", "application/octet-stream"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="any", name="Any", description="Anything.", tags=["test"])],
)
KEY = "a-key-of-twenty-or-more-characters"
CARD_PATH = "/.well-known/agent-card.json"


@contextmanager
def serving(app: Callable[[str], Any]) -> Iterator[str]:
    """A server at a free port, made for its own address."""
    bound = bind(0)
    with HttpServer(app(f"http://127.0.0.1:{bound.getsockname()[1]}"), bound) as server:
        yield server.url


def stock(url: str, kind: str) -> Starlette:
    """The SDK's own server, with a card of this kind."""
    card = AgentCard()
    card.CopyFrom(CARD)
    binding = kind if kind == "HTTP+JSON" else "JSONRPC"
    interface = {"url": f"{url}/rpc", "protocol_binding": binding, "protocol_version": "1.0"}
    card.supported_interfaces.add(**interface)
    card.capabilities.streaming = kind != "in one piece"
    shown = MessageToDict(card)
    if kind == "0.3":
        del shown["supportedInterfaces"]
        shown |= {"url": f"{url}/rpc", "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
    handler = DefaultRequestHandler(Said(), InMemoryTaskStore(), card)
    if kind == "HTTP+JSON":
        routes = create_rest_routes(handler, path_prefix="/rpc")
    else:
        routes = list(create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=kind == "0.3"))
    return Starlette(routes=[answering(shown), *routes])


def answering(said: Any, status: int = 200) -> Route:
    """The route of a card, or of what stands in its place."""

    async def answer(_: Request) -> Response:
        return (PlainTextResponse if isinstance(said, str) else JSONResponse)(said, status)

    return Route(CARD_PATH, answer)


class Cutting:
    """An application whose first streams are cut behind their first pieces."""

    def __init__(self, app: Any) -> None:
        self.app, self.left = app, 2

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        pieces = 0

        async def cut(message: Any) -> None:
            nonlocal pieces
            await send(message)
            pieces += message.get("more_body", False)
            if pieces > 1 and self.left:
                self.left -= 1
                raise ConnectionError

        with suppress(ConnectionError):
            await self.app(scope, receive, cut)


@contextmanager
def ours(folder: Path, how: Any = (), **settings: Any) -> Iterator[str]:
    """A `dev` of the agent in a folder; `how`: more of its options."""
    card, file = folder / "agent_card.json", folder / ".a2a/dev.db"
    card.write_text(json.dumps(MessageToDict(CARD)), encoding="utf-8")
    options = Options(agent=AGENT, card=card, file=file, **dict(how))
    deployed = Settings(**{"auth": "none", **settings})
    with held(file) as own, Stack(deployed, options) as stack:
        own.announce(stack.url)
        yield stack.url


KINDS = ("ours", "JSONRPC", "HTTP+JSON", "0.3", "in one piece")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of our agent."""
    with ours(tmp_path_factory.mktemp("dev")) as url:
        yield url


@pytest.fixture(params=KINDS)
def agent_of_each_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an agent; a test talks to one of each kind."""
    if request.param == "ours":
        yield request.getfixturevalue("dev")
    else:
        with serving(lambda url: stock(url, request.param)) as url:
            yield url


@pytest.fixture
def agent() -> Iterator[str]:
    """The address of an agent on the SDK's own server."""
    with serving(lambda url: stock(url, "JSONRPC")) as url:
        yield url


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stdin is empty, and no terminal; there is no key and no dev of the folder."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.delenv("A2A_API_KEY", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


class Typed(io.StringIO):
    """A terminal at which a person types lines."""

    def isatty(self) -> bool:
        return True


def test_an_answer_is_one_text_and_the_rest_is_on_stderr(agent_of_each_kind: str, run: Run) -> None:
    """Stdout has the text alone, whatever chunks it came in; the code is 1 if the task has failed.

    Where there is no artifact, the text of the ending, the message or the question is the answer. A
    question has a code of its own, and `--task` shows and answers it. `--json` prints each event as
    a line, and nothing else on either side.
    """
    agent = agent_of_each_kind
    said = run("send", agent, "hello")
    assert said == (0, "you said: hello\n", said.err)
    assert "completed: Done." in said.err
    assert "--task" not in said.out

    assert run("send", agent, "only words")[:2] == (0, "All is said.\n")
    assert run("send", agent, "message")[:2] == (0, "without task\n")
    failed = run("send", agent, "fail")
    assert failed[:2] == (1, "No luck.\n")
    assert failed.err.endswith("failed\n")

    asked = run("send", agent, "ask")
    assert asked[:2] == (3, "Which city?\n")
    assert "input-required" in asked.err
    task = task_of(asked.err)
    assert run("send", agent, "--task", task)[:2] == asked[:2]
    assert run("send", agent, "--task", task, "Oslo")[:2] == (0, "you said: Oslo\n")

    printed = run("send", agent, "--json", "hello")
    events = printed.jsons
    assert (printed.code, printed.err) == (0, "")
    assert set().union(*events) <= {"task", "statusUpdate", "artifactUpdate"}
    assert "TASK_STATE_COMPLETED" in json.dumps(events[-1])


def test_each_of_several_questions_is_a_line(agent: str, run: Run) -> None:
    """They are the parts of one status, and stderr says how to answer one alone."""
    asked = run("send", agent, "ask both")
    assert asked[:2] == (3, "Which day?\nWhich city?\n")
    assert re.findall(r"answer one: .* --question (\w+)\n", asked.err) == ["day", "city"]

    named = ("send", agent, "--task", task_of(asked.err), "Oslo", "--question")
    run(*named, "hour").refuses("does not ask 'hour': it asks day, city.")
    assert run(*named, "city")[:2] == (0, "you said: Oslo to city\n")


def test_what_stdout_cannot_encode_is_escaped(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text, and in events as JSON, which are read as what they were."""
    shown = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", shown)
    codes = [cli.main(["send", agent, *how, "\u00fc \U0001f600"]) for how in ((), ("--json",))]
    shown.flush()
    text, *events = shown.buffer.getvalue().decode("ascii").splitlines()
    assert (codes, text) == ([0, 0], r"you said: \u00fc \ud83d\ude00")
    assert "\u00fc \U0001f600" in json.dumps([*map(json.loads, events)], ensure_ascii=False)


def test_files_go_and_come(agent: str, run: Run, tmp_path: Path) -> None:
    """A file is sent with its name, and one that comes is written once, where `--out` says."""
    sent = tmp_path / "notes.bin"
    sent.write_bytes(b"12345")
    told = run("send", agent, "picture", "--file", str(sent))
    assert told[:2] == (0, "you said: picture notes.bin 5\n")
    assert "cat.png, image/png, " in told.err
    assert "--out" in told.err

    for _ in range(2):
        run("send", agent, "picture", "--out", str(tmp_path / "out"))
    kept = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in kept] == ["cat-2.png", "cat.png"]
    assert {path.read_bytes() for path in kept} == {PICTURE}
    assert not (tmp_path.parent / "cat.png").exists()


def test_a_conversation_goes_on(agent: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal each line is a message, an answer or its context's next; else stdin is one."""
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert run("send", agent)[:2] == (0, "you said: from a pipe\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Gr\xfc\xdfe"), "utf-8"))
    for arguments in ((), ("\udcfc",), ("hello", "--context", "\udcfc")):
        assert "not UTF-8" in run("send", agent, *arguments).err

    monkeypatch.setattr("sys.stdin", Typed())
    lines = iter(["ask", "Oslo", "", "Oslo", "fail", "/new", "hello"])
    prompts: list[str] = []

    def typed(prompt: str = "") -> str:
        prompts.append(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    talked = run("send", agent)
    assert talked.code == 0
    answers = ["Which city?", *["you said: Oslo"] * 2, "No luck.", "you said: hello", ""]
    assert talked.out.splitlines() == answers
    assert prompts == ["> ", "answer> ", *["> "] * 6]
    assert talked.err.startswith("Said at http")


def test_the_url_may_be_that_of_a_card(run: Run) -> None:
    """A card that is in another place is found there, whatever its name."""
    place = "/agents/7"

    def app(url: str) -> Starlette:
        made = stock(url, "JSONRPC")
        made.router.routes[0] = Route(place, made.router.routes[0].endpoint)  # type: ignore[attr-defined]
        return made

    with serving(app) as url:
        assert run("send", url + place, "hello")[:2] == (0, "you said: hello\n")


@pytest.mark.parametrize("agent_of_each_kind", ["ours", "0.3"], indirect=True)
def test_an_interrupted_task_is_followed(
    agent_of_each_kind: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves the task at work and names it; `--task` shows it to its end."""
    agent = agent_of_each_kind
    released, heard = tmp_path / "released", []

    def hears(text: str) -> None:
        heard.append(text)
        if heard == ["working: thinking"]:
            signal.raise_signal(signal.SIGINT)
        elif heard.count("working: thinking") == 2:
            released.touch()

    monkeypatch.setattr(answers, "say", hears)
    interrupted = run("send", agent, f"wait {released}")
    assert interrupted[:2] == (130, "")

    followed = run("send", agent, "--task", task_of(interrupted.err))
    assert followed[:2] == (0, f"you said: wait {released}\n")


def test_a_cut_stream_goes_on(run: Run, tmp_path: Path) -> None:
    """Each piece of the text is shown once, however often the connection is cut."""
    apps: list[Cutting] = []

    def cutting(app: Any) -> Cutting:
        apps.append(Cutting(app))
        return apps[-1]

    beside = {"beside": lambda _, app: cutting(app)}
    theirs = serving(lambda url: cutting(stock(url, "JSONRPC")))
    with ours(tmp_path, beside) as own, theirs as foreign:
        for url in (own, foreign):
            assert run("send", url, "hello")[:2] == (0, "you said: hello\n")
    assert [app.left < 2 for app in apps] == [True, True]


def task_of(told: str) -> str:
    """The task's id in what `send` says at its end."""
    return told.rpartition("--task ")[2].split()[0]


# -- our own ---------------------------------------------------------------------------------


def test_large_files(dev: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the message has no room for goes beside it, where the card offers that."""
    monkeypatch.setattr(send, "_RAW_BYTES", 7)
    paths = [tmp_path / name for name in ("small.txt", "large.txt")]
    for path in paths:
        path.write_bytes(b"12345")
    files = [part for path in paths for part in ("--file", str(path))]
    said = run("send", dev, "read", *files)
    assert said[:2] == (0, "you said: read small.txt 5 large.txt 5\n")


def test_the_dev_of_the_folder_is_the_agent_without_a_url(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text alone goes to the running dev of this folder; without one, a sentence says so."""
    run("send", "hello").refuses("No dev runs in this folder, or it is still starting")

    monkeypatch.chdir(tmp_path)
    assert own_file.own_file(tmp_path) == tmp_path / ".a2a/dev.db"
    with ours(tmp_path):
        assert run("send", "hello")[:2] == (0, "you said: hello\n")


def test_a_key_as_the_card_asks(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the refusal names `--key`; the environment's counts, and a header as it is."""
    with ours(tmp_path, auth="api-key", api_keys=f"ann={KEY}") as url:
        run("send", url, "hello").refuses("--key")
        asked = run("send", url, "ask", "--key", KEY)
        assert (asked.code, asked.err.rstrip().endswith(" --key KEY")) == (3, True), asked.err
        assert run("send", url, "hello", "--header", f"X-API-Key: {KEY}").code == 0
        monkeypatch.setenv("A2A_API_KEY", KEY)
        assert run("send", url, "hello").code == 0


@pytest.mark.parametrize(
    ("scheme", "key", "header"),
    [
        ({}, "k", {"X-API-Key": "k"}),
        ({}, "Bearer k", {"Authorization": "Bearer k"}),
        ({"apiKeySecurityScheme": {"location": "header", "name": "K"}}, "k", {"K": "k"}),
        ({"httpAuthSecurityScheme": {"scheme": "bearer"}}, "k", {"Authorization": "Bearer k"}),
    ],
)
def test_the_header_of_a_key(scheme: dict[str, Any], key: str, header: dict[str, str]) -> None:
    """The card says in which header a key belongs."""
    shown = {"securitySchemes": {"one": scheme}} if scheme else {}
    assert send._credentials(key, ParseDict(shown, AgentCard())) == header


# -- refusals --------------------------------------------------------------------------------

FAR, GRPC = (
    {"supportedInterfaces": [{"url": url, "protocolBinding": name, "protocolVersion": "1.0"}]}
    for url, name in (("http://127.0.0.1:1/", "JSONRPC"), ("x", "GRPC"))
)
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("route", "named"),
    [
        (answering("gone", 404), "no agent card"),
        (answering(["list"]), "no agent card"),
        (answering({"name": "a"}), "names none"),
        (answering({"name": "a", **GRPC}), "names GRPC"),
        (answering({"name": "a", **FAR}), "names http://127.0.0.1:1/, which"),
        (answering("who?", 401), "--key"),
        (answering("broken", 500), "500"),
    ],
)
def test_no_agent_is_one_sentence(route: Route, named: str, run: Run) -> None:
    """Place, cause and way out, in one line."""
    with serving(lambda _: Starlette(routes=[route])) as url:
        run("send", url, "hello").refuses(url, named)


def test_wrong_use_is_one_sentence(run: Run) -> None:
    """So is a call that cannot be made."""
    run("send", NOWHERE).refuses("nothing to send")
    for url in ("http://127.0.0.1:99999", "localhost:8000"):
        run("send", url, "hello").refuses("is no URL")
    run("send", "http://[", "hello").refuses("http://[")
    for options, named in (
        ((), "cannot be reached"),
        (("--file", "gone.txt"), "gone.txt"),
        (("--header", "Nothing"), "NAME: VALUE"),
        (("--key", "clé"), "--key"),
        (("--question", "day"), "give --task"),
    ):
        run("send", NOWHERE, "hello", *options).refuses(named)
