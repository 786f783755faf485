"""`a2a-serverless send`: talks to any A2A agent from the terminal."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import shlex
import sys
import uuid
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import PROGRAM, Adders, Parser
from a2a_serverless_tools.cli.text import printable, refuse, say

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx
    from a2a.types import AgentCard, Part, StreamResponse

    from a2a_serverless.client import ResumingClient
    from a2a_serverless.client.origins import AgentOrigins
_KEY: Final = "A2A_API_KEY"
"""The variable with the caller's key, where `--key` does not name one."""
_RAW_BYTES: Final = 2_000_000
"""The bytes of files that go into the message itself, if the agent takes uploads."""
_GIVE_UP_S: Final = 60.0
"""The seconds without anything new after which a call is given up."""
_TIMEOUT_S: Final = 40.0
"""Longer than an agent of this framework is silent."""
_SOON_S: Final = 10.0
"""A stream that lasts longer has ended by a time limit, and not for want of a connection."""
_BINDINGS: Final = ("JSONRPC", "HTTP+JSON")


def _add_send(send: Parser) -> None:
    send.does(
        _send,
        "Sends TEXT to the agent at URL, by default to the running dev of this folder, "
        "and prints the answer to stdout as it comes, what happens meanwhile to stderr. Without "
        "TEXT it reads stdin, which on a terminal is a conversation. Exit codes: 0 completed, "
        "1 failed, rejected or canceled, 2 wrong use or no connection, 3 the agent asks: answer "
        "with --task.",
    )
    send.add_words("URL TEXT", help_text="one of them may be left out")
    send.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="sent with the first message; may be repeated",
    )
    send.add_argument("--out", type=Path, metavar="FOLDER", help="gets the files that come back")
    send.add_argument("--task", metavar="ID", default="", help="answers, or goes on with, a task")
    send.add_argument(
        "--question", metavar="ID", default="", help="answers one of the task's alone"
    )
    send.add_argument("--context", metavar="ID", default="", help="goes on with a conversation")
    send.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    send.add_argument(
        "--key",
        default="",
        help=f"yours, for the header that the card names, or 'Bearer TOKEN' (default: {_KEY})",
    )
    send.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="of every request to the agent; may be repeated",
    )


def _send(options: Namespace) -> int:
    """Send one message, or one after the other, and return the exit code of the last one."""
    options.key = options.key or os.environ.get(_KEY, "")
    url, text = _url_and_text(options.words)
    for path in options.file:
        if not path.is_file():
            raise ConfigurationError(f"There is no file {path}: name another one with --file.")
    if options.question and not options.task:
        raise ConfigurationError("--question names one of a task's questions: give --task, too.")
    is_conversation = not text and sys.stdin.isatty()
    if not (text or is_conversation):
        with _explained(url):
            text = sys.stdin.read().strip()
    if not (text or is_conversation or options.file or options.task):
        raise ConfigurationError(f"There is nothing to send: {PROGRAM} send [URL] TEXT.")
    with asyncio.Runner() as runner, _explained(url):
        talk = runner.run(_opened(url, options))
        try:
            if is_conversation:
                return _converse(runner, talk)
            code = runner.run(talk.turn(text) if text or options.file else talk.follow())
        except KeyboardInterrupt:
            if not talk.answer.has_ended:
                talk.say_ids()
            raise
        else:
            if talk.answer.is_question:
                talk.say_ids("answer it")
            return code
        finally:
            runner.run(talk.close())


def _converse(runner: asyncio.Runner, talk: _Talk) -> int:
    """Send what a person types until `/quit` or the end of input."""
    with suppress(ImportError):
        import readline  # noqa: F401 - input() has a history by it

    say(f"{printable(talk.card.name)} at {talk.url}; /new begins anew, /quit ends")
    code = runner.run(talk.follow()) if talk.task else 0
    while True:
        try:
            text = input("answer> " if talk.answer.is_question else "> ").strip()
        except EOFError:
            print()
            return code
        if text == "/quit":
            return code
        if text == "/new":
            talk.forget()
        elif text:
            try:
                with _explained(talk.url):
                    code = runner.run(talk.turn(text))
            except ConfigurationError as error:
                code = refuse(str(error))
            except KeyboardInterrupt:
                print(file=sys.stderr)
                talk.say_ids()


async def _opened(url: str, options: Namespace) -> _Talk:
    """Return a conversation with the agent at a URL.

    Raises:
        ConfigurationError: its card names no way to it that this command speaks, or a header can
            hold no key like the caller's.
    """
    import httpx
    from a2a.client import ClientConfig

    from a2a_serverless.client import Retries, create_resuming_client
    from a2a_serverless.client.origins import is_here

    own = dict(map(_header, options.header))
    if not all(
        text.isascii() and text.isprintable() for text in (options.key, *own, *own.values())
    ):
        raise ConfigurationError(f"--key, {_KEY} and --header take printable ASCII alone.")
    # A proxy of the environment does not know this machine's own addresses.
    http = httpx.AsyncClient(headers=own, timeout=_TIMEOUT_S, trust_env=not is_here(url))
    try:
        first = {"headers": {**_credentials(options.key), **own}}
        card = await _card(url, http, first)
        http.headers.update({**_credentials(options.key, card), **own})
        agent = await _interfaces(url, card, http)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[*_BINDINGS])
        client = await create_resuming_client(
            card, config, retries=Retries(give_up_after_s=_GIVE_UP_S)
        )
    except BaseException:
        await http.aclose()
        raise
    return _Talk(url, card, agent, http, client, options)


async def _card(url: str, http: httpx.AsyncClient, first: dict[str, Any]) -> AgentCard:
    """Return the card that is below a URL, or at the URL itself."""
    from a2a.client import A2ACardResolver
    from a2a.client.errors import AgentCardResolutionError

    resolver = A2ACardResolver(http, url)
    if url.endswith(".json"):
        return await resolver.get_agent_card("/", http_kwargs=first)
    try:
        return await resolver.get_agent_card(http_kwargs=first)
    except AgentCardResolutionError as error:
        if error.status_code == HTTPStatus.NOT_FOUND:
            with suppress(AgentCardResolutionError):
                return await resolver.get_agent_card("/", http_kwargs=first)
        raise


async def _interfaces(url: str, card: AgentCard, http: httpx.AsyncClient) -> AgentOrigins:
    """Return where the agent with a card is called; from now on `http` asks nothing else here.

    Refused is a card with other bindings alone, one that leads to this machine from another, and
    one whose interfaces on another host do not answer: calls there would be tried again and again,
    as those to an agent that is being replaced.

    Raises:
        ConfigurationError: one sentence names what the card says.
    """
    import httpx

    from a2a_serverless.client.origins import AgentOrigins, is_here

    ways = card.supported_interfaces
    spoken = [way.url for way in ways if way.protocol_binding in _BINDINGS]
    if not spoken:
        named = ", ".join(sorted({way.protocol_binding for way in ways})) or "none"
        raise ConfigurationError(
            f"The card of {url} names no interface over {' or '.join(_BINDINGS)}, and this"
            f" command speaks no other (it names {named})."
        )
    if not is_here(url) and (wrong := next(filter(is_here, spoken), "")):
        raise ConfigurationError(
            f"The card of {url} names {wrong}, which is this machine and not the agent's: correct"
            " the card."
        )
    http.event_hooks["request"].append(AgentOrigins(url).guarding)
    if urlsplit(url).netloc not in {urlsplit(way).netloc for way in spoken}:
        try:
            await http.head(spoken[0])
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ConfigurationError(
                f"The card of {url} names {spoken[0]}, which cannot be reached ({_said(error)}):"
                " correct the card."
            ) from error
    return AgentOrigins(url, *spoken)


class _Talk:
    """A conversation with an agent.

    Args:
        url: the agent's, as the caller has named it.
        card: the agent's.
        agent: where it is called.
        http: the client's, with the caller's credentials.
        client: calls the agent.
        options: the arguments.
    """

    def __init__(
        self,
        url: str,
        card: AgentCard,
        agent: AgentOrigins,
        http: httpx.AsyncClient,
        client: ResumingClient,
        options: Namespace,
    ) -> None:
        from a2a_serverless_tools.cli.answers import Answer

        self.url, self.card = url, card
        self.task: str = options.task
        """The task that the caller has named, until a message was sent to it."""
        self._question: str = options.question
        """The one of its questions that the message is to answer; empty: all."""
        self.answer = Answer(as_json=options.json, context_id=options.context)
        self._agent, self._http, self._client = agent, http, client
        self._out: Path | None = options.out
        self._as_json: bool = options.json
        self._key = " --key KEY" if options.key and _KEY not in os.environ else ""
        """What the next command needs as well; the key itself is not shown again."""
        self._files: list[Path] = options.file
        self._asked_at: float | None = None
        """When the stream was asked for from which nothing has come yet."""
        http.event_hooks["request"].append(self._see)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._http.aclose()

    def forget(self) -> None:
        """Begin a new conversation."""
        self.answer, self.task = type(self.answer)(as_json=self._as_json), ""

    async def turn(self, text: str) -> int:
        """Send a message, with files if it is the first one; show the answer.

        Returns:
            The exit code.

        Raises:
            ConfigurationError: the task does not ask what the message is to answer.
        """
        from a2a.types import Message, Part, Role, SendMessageRequest

        if self.task:
            await self._catch_up(is_silent=True)
        named = self._named_question()
        parts = [Part(text=text)] if text else []
        parts += [part async for part in self._parts()]
        for part in parts:
            part.metadata.update(named)
        message = Message(
            message_id=str(uuid.uuid4()),
            role=Role.ROLE_USER,
            parts=parts,
            task_id=self.answer.task_id if self.task or self.answer.is_question else "",
            context_id=self.answer.context_id,
        )
        self.task, self._question, self._files = "", "", []
        self.answer.begin()
        await self._show(self._client.send_message(SendMessageRequest(message=message)))
        return await self._end()

    def _named_question(self) -> dict[str, str]:
        """Return what names the question of the caller in the metadata of a part."""
        from a2a_serverless.tasks.questions import ID_FIELD

        asked = self.answer.questions if self.answer.is_question else ()
        if self._question and self._question not in asked:
            which = f"asks {', '.join(asked)}" if asked else "asks nothing that has an id"
            raise ConfigurationError(
                f"The task {self.task} does not ask {self._question!r}: it {which}."
            )
        return {ID_FIELD: self._question} if self._question else {}

    async def follow(self) -> int:
        """Show the named task, and what comes of its turn until that ends; return the exit code."""
        from a2a.types import SubscribeToTaskRequest
        from a2a.utils.errors import UnsupportedOperationError

        await self._catch_up(is_silent=False)
        request = SubscribeToTaskRequest(id=self.task)
        if not self.answer.has_ended:
            try:
                await self._show(self._client.subscribe(request), until_pause=True)
            except UnsupportedOperationError:  # it has ended meanwhile
                await self._catch_up(is_silent=False)
        self.task = ""
        return await self._end()

    async def _catch_up(self, *, is_silent: bool) -> None:
        from a2a.types import GetTaskRequest, StreamResponse

        task = await self._client.get_task(GetTaskRequest(id=self.task, history_length=0))
        self.answer.is_silent = is_silent
        self.answer.take(StreamResponse(task=task))
        self.answer.is_silent = False

    async def _show(
        self, events: AsyncIterator[StreamResponse], *, until_pause: bool = False
    ) -> None:
        """Show events to their end, or to a pause, through which a subscription would go on."""
        self._asked_at = None
        async with aclosing(cast("AsyncGenerator[StreamResponse, None]", events)) as stream:
            async for event in stream:
                self.answer.take(event)
                self._asked_at = None
                if until_pause and self.answer.has_ended:
                    break

    async def _end(self) -> int:
        from a2a_serverless_tools.cli.answers import described, keep

        self.answer.end()
        if self._out is None:
            for part in self.answer.files:
                say(f"file {described(part)}; --out FOLDER keeps files")
        elif self.answer.files:
            import httpx

            from a2a_serverless.client.origins import is_here

            trusts = not is_here(self.url)
            hooks = {"request": [self._agent.guarding]}
            async with httpx.AsyncClient(
                timeout=_TIMEOUT_S, trust_env=trusts, event_hooks=hooks
            ) as http:
                for path in await keep(self.answer.files, self._out, self._agent, http):
                    say(f"file {path}, {path.stat().st_size:,} bytes")
        return self.answer.exit_code

    def say_ids(self, what: str = "it may go on; see it") -> None:
        """Say how to name the task."""
        if self.answer.task_id and not self._as_json:
            again = _again(self.url, self.answer.task_id) + self._key
            say(f"{what}: {again}")
            for each in self.answer.questions if len(self.answer.questions) > 1 else ():
                say(printable(f"answer one: {again} --question {shlex.quote(each)}"))

    async def _parts(self) -> AsyncIterator[Part]:
        """Yield the files to send; upload those for which the message has no room."""
        from a2a.types import Part

        from a2a_serverless.client import upload
        from a2a_serverless.sources import UPLOADS_EXTENSION

        takes = any(one.uri == UPLOADS_EXTENSION for one in self.card.capabilities.extensions)
        room = _RAW_BYTES
        for path in self._files:
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            room -= path.stat().st_size
            if takes and room < 0:
                yield await upload(self._http, self.card, path, media_type=kind)
            else:
                yield Part(raw=path.read_bytes(), filename=path.name, media_type=kind)

    async def _see(self, request: httpx.Request) -> None:
        """Say that a stream is asked for again, soon after one that has brought nothing."""
        if "text/event-stream" in request.headers.get("Accept", ""):
            now = asyncio.get_running_loop().time()
            if self._asked_at is not None and now - self._asked_at < _SOON_S:
                say(f"nothing comes from {printable(request.url.host)}: trying again")
            self._asked_at = now


def _again(url: str, task_id: str) -> str:
    """Return the command that shows a task again, to be copied into a shell."""
    return f"{PROGRAM} send {shlex.quote(url)} --task {shlex.quote(task_id)}"


def _url_and_text(words: Sequence[str]) -> tuple[str, str]:
    """Return the agent's URL and the message; the message is empty if there is none.

    Raises:
        ConfigurationError: no URL is named and no dev runs here, or there is something else.
    """
    from a2a_serverless_tools.local.own_file import own_file, url_of

    given = list(words)
    url = given.pop(0) if given and (_is_url(given[0]) or len(given) > 1) else ""
    if len(given) > 1 or (url and not _is_url(url)):
        raise ConfigurationError(
            f"{url} is no URL, or the text is not in quotes: {PROGRAM} send https://HOST 'TEXT'."
        )
    text = given[0] if given else ""
    url = url or url_of(own_file(Path.cwd()))
    if not url:
        raise ConfigurationError(
            f"No dev runs in this folder, or it is still starting: run {PROGRAM} dev and wait for"
            f" its address, or name the agent's URL: {PROGRAM} send https://HOST 'TEXT'."
        )
    return url, text


def _is_url(word: str) -> bool:
    try:
        parts = urlsplit(word)
        host = parts.hostname if parts.port != 0 else None  # `port` raises for a wrong one
    except ValueError:
        host = None
    return bool(host) and word.startswith(("http://", "https://")) and len(word.split()) == 1


def _header(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise ConfigurationError(f"--header {given!r} is not of the form 'NAME: VALUE'.")
    return name.strip(), value.strip()


def _credentials(key: str, card: AgentCard | None = None) -> dict[str, str]:
    """Return the header for a key: the one that the card names, or X-API-Key.

    `Bearer TOKEN`, and a token for a card without keys, goes into Authorization.
    """
    if not key:
        return {}
    if key.lower().startswith(("bearer ", "basic ")):
        return {"Authorization": key}
    schemes = [] if card is None else list(card.security_schemes.values())
    for scheme in schemes:
        named = scheme.api_key_security_scheme
        if scheme.HasField("api_key_security_scheme") and named.location == "header":
            return {named.name: key}
    tokens = ("http_auth_security_scheme", "oauth2_security_scheme")
    kinds = (*tokens, "open_id_connect_security_scheme")
    if any(scheme.HasField(kind) for scheme in schemes for kind in kinds):
        return {"Authorization": f"Bearer {key}"}
    return {"X-API-Key": key}


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn the errors of a client into one sentence: where, why, and what to do.

    Raises:
        ConfigurationError: that sentence.
    """
    import httpx
    from a2a.client.errors import A2AClientError, AgentCardResolutionError
    from a2a.utils.errors import A2AError

    from a2a_serverless.client import GaveUpError
    from a2a_serverless.client.origins import RefusedUrlError
    from a2a_serverless.client.retries import causes, status_of

    try:
        yield
    except UnicodeError as error:
        raise ConfigurationError("The text, or a name beside it, is not UTF-8.") from error
    except GaveUpError as error:
        named = error.task_id
        way = f"see it again with {_again(url, named)}" if named else "send it again"
        msg = f"{error.reason} The agent may go on with it: {way}."
        raise ConfigurationError(msg) from error
    except RefusedUrlError as error:
        raise ConfigurationError(str(error)) from error
    except (A2AError, httpx.HTTPError, httpx.InvalidURL) as error:
        status, chain = status_of(error), list(causes(error))
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            msg = f"{url} refuses the caller ({status}): name your key with --key or {_KEY}."
        elif any(isinstance(one, httpx.TransportError | httpx.InvalidURL) for one in chain):
            msg = f"{url} cannot be reached ({_said(chain[-1])}): check the address."
        elif isinstance(error, AgentCardResolutionError):
            why = f"it answers {status}" if status else _said(chain[-1])
            msg = f"There is no agent card for {url} ({why}): name the address of an agent."
        elif isinstance(error, A2AClientError) and status is None:  # no error of the protocol
            msg = f"The call of {url} has failed: {_said(error)}"
        else:
            msg = f"{url} has refused it: {_said(error)}"
        raise ConfigurationError(msg) from error


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


ADDERS: Final[Adders] = {"send": _add_send}
