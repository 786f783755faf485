"""An agent's tasks through the official client, printed as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from typing import TextIO

import httpx
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
)
from rich.console import Console
from rich.text import Text

from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless_tools.local.cards import named
from a2a_serverless_tools.local.stack import Options, Stack

_LIMIT_S = 60.0
"""The longest time for the two tasks, in seconds; they take 5 s unless something is stuck."""

_STREAMED = "Two days in Lisbon, please"
_UNCLEAR = "Plan a trip to Oslo"
_ANSWER = "One day"
_GREETING = "Hello"
"""The message for an agent whose card has no examples."""

_MOST_EXAMPLES = 3
"""The most tasks for an agent that is not the framework's own."""

_COLOURS = {
    **dict.fromkeys(TERMINAL, "red"),
    **dict.fromkeys(INTERRUPTED, "yellow"),
    TaskState.TASK_STATE_COMPLETED: "green",
}
_QUIET, _STRONG, _ARTIFACT = "dim", "bold", "cyan"


class DemoError(Exception):
    """The client did not get what the demo has to show."""


def show(out: TextIO, *, agent: str, card: Path, own: bool = False) -> None:
    """Run tasks of an agent in this process and print what the client sees of them.

    Args:
        out: gets the transcript.
        agent: the agent as `FILE.py:NAME`.
        card: its card.
        own: True for an agent of the user, which gets the examples of its card; False for the
            framework's trip planner, whose two tasks must go as expected.

    Raises:
        DemoError: the client saw something unexpected, or nothing for `_LIMIT_S`.
    """
    transcript = _Transcript(out)
    transcript.plain("HTTP application, workers and sweeper on one file, in this process")
    transcript.fact("runs", f"{agent}\ncard {named(card)}")
    settings = load_settings().model_copy(update={"auth": "none", "public_url": ""})
    with Stack(settings, Options(agent=agent, card=card)) as stack:
        try:
            asyncio.run(_show(transcript, stack, _examples if own else _two_tasks))
        except TimeoutError as error:
            raise DemoError(f"nothing came for {_LIMIT_S:g} seconds.") from error
        except (A2AClientError, httpx.HTTPError) as error:
            raise DemoError(f"{type(error).__name__}: {error}") from error


_Tasks = Callable[[Client, AgentCard, "_Transcript"], Awaitable[None]]


async def _show(transcript: _Transcript, stack: Stack, tasks: _Tasks) -> None:
    # Without proxies of the environment: everything is on this machine.
    http = httpx.AsyncClient(trust_env=False, timeout=_LIMIT_S)
    async with asyncio.timeout(_LIMIT_S), http:
        card = await A2ACardResolver(http, stack.url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        url = card.supported_interfaces[0].url
        transcript.fact("agent", f"{card.name}, {stack.url}/.well-known/agent-card.json")
        transcript.fact("client", f"a2a-sdk {version('a2a-sdk')}, streaming from {url}")
        await tasks(client, card, transcript)


async def _two_tasks(client: Client, _: AgentCard, transcript: _Transcript) -> None:
    transcript.heading("1  A task that streams its answer")
    streamed = await _converse(client, transcript, _STREAMED)
    _expect(streamed, TaskState.TASK_STATE_COMPLETED)

    transcript.heading("2  A task that asks back, and goes on with the answer")
    paused = await _converse(client, transcript, _UNCLEAR)
    _expect(paused, TaskState.TASK_STATE_INPUT_REQUIRED)
    resumed = await _converse(client, transcript, _ANSWER, task=paused)
    _expect(resumed, TaskState.TASK_STATE_COMPLETED)

    transcript.plain("\n2 tasks completed: one streamed, one resumed after its question.")


async def _examples(client: Client, card: AgentCard, transcript: _Transcript) -> None:
    """Send the examples of the card; the agent may end their tasks or ask back."""
    said = [text for skill in card.skills for text in skill.examples] or [_GREETING]
    good = TaskState.TASK_STATE_COMPLETED, *sorted(INTERRUPTED)
    for number, text in enumerate(said[:_MOST_EXAMPLES], 1):
        transcript.heading(f"{number}  An example of its card")
        task = await _converse(client, transcript, text)
        _expect(task, *good)
    transcript.plain(f"\n{min(len(said), _MOST_EXAMPLES)} of the card's examples were answered.")


async def _converse(
    client: Client, transcript: _Transcript, text: str, *, task: Task | None = None
) -> Task:
    """Send one message, print the events, and compare them with the stored task."""
    transcript.client_says(text)
    task_id, chunks, streamed = "", 0, ""
    said = new_text_message(
        text,
        role=Role.ROLE_USER,
        task_id=task.id if task else None,
        context_id=task.context_id if task else None,
    )
    async for event in client.send_message(SendMessageRequest(message=said)):
        transcript.event(event)
        task_id = task_id or event.task.id or event.status_update.task_id
        if event.HasField("artifact_update"):
            chunks += 1
            streamed += _text_of(event.artifact_update.artifact.parts)
    stored = await client.get_task(GetTaskRequest(id=task_id))
    if "".join(_text_of(artifact.parts) for artifact in stored.artifacts) != streamed:
        raise DemoError(f"the stored artifact of task {task_id} is not what was streamed.")
    summary = f"task {stored.id}, {_state_label(stored.status.state)}"
    if chunks:
        summary += f"\n{len(streamed)} characters as streamed in {chunks} chunks"
    transcript.fact("stored", summary)
    return stored


def _expect(task: Task, *states: TaskState) -> None:
    if task.status.state not in states:
        found, wanted = _state_label(task.status.state), " or ".join(map(_state_label, states))
        raise DemoError(f"task {task.id} is {found} instead of {wanted}.")


class _Transcript:
    """Prints three columns: seconds since the client's last message, the event, its text.

    Colours are used at a terminal, unless `NO_COLOR` is set (no-color.org).
    """

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._sent_at = time.monotonic()

    def heading(self, text: str) -> None:
        self._print(Text(f"\n{text}\n", _STRONG))

    def fact(self, label: str, text: str) -> None:
        self._row("", label, _QUIET, text)

    def plain(self, text: str) -> None:
        self._print(Text(text))

    def client_says(self, text: str) -> None:
        """Print a message of the client, and restart the clock."""
        self._sent_at = time.monotonic()
        self._row("", "client", _STRONG, text)

    def event(self, event: StreamResponse) -> None:
        """Print one event of a stream."""
        match event.WhichOneof("payload"):
            case "task":
                self._status(event.task.status)
            case "status_update":
                update = event.status_update
                self._status(update.status, progress_in(update.metadata))
            case "artifact_update":
                artifact = event.artifact_update.artifact
                name = artifact.name or artifact.artifact_id
                self._row(self._seconds(), name, _ARTIFACT, _text_of(artifact.parts))
            case "message":
                self._row(self._seconds(), "agent", _STRONG, _text_of(event.message.parts))

    def _status(self, status: TaskStatus, progress: Progress | None = None) -> None:
        text = _text_of(status.message.parts)
        if progress is not None:
            text = f"{progress}  {text}".rstrip()
        self._row(self._seconds(), _state_label(status.state), _COLOURS.get(status.state, ""), text)

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._sent_at:.2f} s"

    def _row(self, first: str, label: str, colour: str, text: str) -> None:
        below = indent(text, " " * 27).strip()
        said = (f"{first:>7}", _QUIET), "  ", (f"{label:<16}", colour), below
        row = Text.assemble("  ", *said)
        row.rstrip()
        self._print(row)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _state_label(state: TaskState) -> str:
    """Return the state in its short form, such as `input-required`."""
    return plain_state(state).replace("_", "-")


def _text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)
