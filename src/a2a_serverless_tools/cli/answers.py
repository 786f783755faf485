"""What an agent answers, for a person at a terminal or for a program that reads stdout.

Text goes to stdout as one running text, as it comes; states and what the agent says on its way go
to stderr.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpx
from a2a.types import Artifact, Message, Part, StreamResponse, Task, TaskState, TaskStatus

from a2a_serverless.client.origins import AgentOrigins, RefusedUrlError
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.sources import inlined
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.questions import question_texts
from a2a_serverless_tools.cli.text import as_line, printable, readable, say

EXIT_FAILED: Final = 1
EXIT_ASKS: Final = 3

MOST_BYTES: Final = 1_000_000_000
"""Of all files of an answer that are kept."""
_LONGEST_ID: Final = 1000

_WELL: Final = frozenset({TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_UNSPECIFIED})
_NO_NAME: Final = "file"
"""The name of a file that has none, before its type's suffix."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answers of one conversation, shown while their events come.

    A Task in the middle of a stream replaces what came before it: only what is new of it is shown.

    Args:
        as_json: True to print each event as a line of JSON, and nothing of what it means.
        is_silent: True for what a Task had before the conversation began here.
    """

    as_json: bool = False
    is_silent: bool = False
    task_id: str = ""
    context_id: str = ""
    state: TaskState = TaskState.TASK_STATE_UNSPECIFIED
    """That of the task; UNSPECIFIED: the agent has answered by a message, without a task."""
    questions: tuple[str, ...] = ()
    """The ids of what the task asks at once, if the agent gives them ids."""
    files: list[Part] = field(default_factory=list)
    """Those that have come since `begin`."""
    _texts: dict[str, str] = field(default_factory=dict)
    """The text of each artifact, as far as it was shown."""
    _known: set[tuple[str, str]] = field(default_factory=set)
    """The parts of artifacts that are no text, and were shown."""
    _said: str = ""
    """The text of the newest status."""
    _has_text: bool = False
    _is_in_line: bool = False

    @property
    def is_question(self) -> bool:
        """Return True if the agent waits for the next message."""
        return self.state in INTERRUPTED

    @property
    def has_ended(self) -> bool:
        """Return True if the turn has."""
        return self.state in TERMINAL | INTERRUPTED

    @property
    def exit_code(self) -> int:
        """Return 0 for a good end, 1 for another one, 3 for a question."""
        if self.is_question:
            return EXIT_ASKS
        return 0 if self.state in _WELL else EXIT_FAILED

    def begin(self) -> None:
        """Forget the turn before; what it has shown is not shown again."""
        self.state = TaskState.TASK_STATE_UNSPECIFIED
        self.files = []
        self._said, self._has_text, self._is_in_line = "", False, False

    def take(self, event: StreamResponse) -> None:
        """Show an event.

        Raises:
            ConfigurationError: it is of a task whose id no task can have.
        """
        if self.as_json:
            print(as_line(json_of(event)), flush=True)
        match event.WhichOneof("payload"):
            case "task":
                self._take_task(event.task)
            case "message":
                self._take_message(event.message)
            case "status_update":
                update = event.status_update
                self._is_of(update.task_id, update.context_id)
                self._take_status(update.status)
            case "artifact_update":
                chunk = event.artifact_update
                self._is_of(chunk.task_id, chunk.context_id)
                self._take_artifact(chunk.artifact, is_whole=not chunk.append)

    def _take_task(self, task: Task) -> None:
        """Show what is new of a task."""
        self._is_of(task.id, task.context_id)
        for artifact in task.artifacts:
            self._take_artifact(artifact, is_whole=True)
        self._take_status(task.status)

    def end(self) -> None:
        """Show how the turn has ended."""
        if self._said and (self.is_question or not self._has_text):
            self._end_line()
            self._write(self._said)
            self._said = ""
        self._end_line()
        if self._said or self.state not in _WELL:
            self._tell(f"{_word(self.state)}{self._said and f': {self._said}'}")

    def _is_of(self, task_id: str, context_id: str) -> None:
        """Take note of an event's task; artifacts of another one may have the same ids."""
        if not task_id.isprintable() or len(task_id) > _LONGEST_ID:
            raise ConfigurationError(
                "The agent gives its task an id that no task can have, which is not shown: nothing"
                " more is read of it."
            )
        if task_id != self.task_id:
            self._texts, self._known = {}, set()
        self.task_id, self.context_id = task_id, context_id

    def _take_message(self, message: Message) -> None:
        self.context_id = message.context_id
        self._write(self._text_of(message.parts, message.message_id))

    def _take_status(self, status: TaskStatus) -> None:
        parts, message_id = status.message.parts, status.message.message_id
        said = self._text_of(parts, message_id, between="\n")  # each may be a question
        self.state, self.questions = status.state, (*question_texts(parts),)
        if status.state not in TERMINAL | INTERRUPTED and said and said != self._said:
            self._tell(f"{_word(status.state)}: {said}")
        self._said = said

    def _take_artifact(self, artifact: Artifact, *, is_whole: bool) -> None:
        name = artifact.artifact_id
        before, text = self._texts.get(name, ""), self._text_of(artifact.parts, name)
        self._texts[name] = text if is_whole else before + text
        if is_whole and before and text.startswith(before):
            text = text.removeprefix(before)
        elif is_whole and (before or text):
            self._end_line()
            if before:
                self._tell("the answer starts over: what follows replaces its text so far")
        self._write(text)

    def _text_of(self, parts: Sequence[Part], of: str, *, between: str = "") -> str:
        """Return the text of parts, joined; show data and note files that were not known before."""
        for part in parts:
            if part.HasField("text") or (of, _mark(part)) in self._known:
                continue
            self._known.add((of, _mark(part)))
            if part.HasField("data"):
                self._end_line()
                self._write(json.dumps(json_of(part.data), ensure_ascii=False))
                self._end_line()
            elif not self.is_silent:
                self.files.append(inlined(part))
        return between.join(part.text for part in parts if part.HasField("text"))

    def _write(self, text: str) -> None:
        if not text or self.as_json or self.is_silent:
            return
        self._has_text, self._is_in_line = True, not text.endswith("\n")
        sys.stdout.write(readable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def _end_line(self) -> None:
        if self._is_in_line:
            print(flush=True)
        self._is_in_line = False

    def _tell(self, text: str) -> None:
        """Say something beside the text, which goes on where it was."""
        if self.as_json or self.is_silent:
            return
        on_same_screen = self._is_in_line and sys.stdout.isatty()
        say(("\n" if on_same_screen else "") + readable(text))


def _word(state: TaskState) -> str:
    return plain_state(state).replace("_", "-")


def _mark(part: Part) -> str:
    """Return what tells a part from others of its artifact; a link is another one each time."""
    if part.HasField("url"):
        return f"{part.filename} {urlsplit(part.url).path}"
    return hashlib.sha256(part.SerializeToString(deterministic=True)).hexdigest()


# -- files -----------------------------------------------------------------------------------


def described(part: Part) -> str:
    """Return a file's name, type, and size or link."""
    what = part.url if part.HasField("url") else f"{len(part.raw):,} bytes"
    return printable(", ".join(filter(None, (_name(part), part.media_type, what))))


async def keep(
    parts: Iterable[Part], folder: Path, agent: AgentOrigins, http: httpx.AsyncClient
) -> list[Path]:
    """Write files into a folder, under names that are free there; return their paths.

    `http` fetches those that are links, without the credentials of the agent's caller: a link that
    an agent gives is complete.

    Raises:
        ConfigurationError: the folder cannot be written, a file cannot be fetched or may not, or
            all together have more than `MOST_BYTES`.
    """
    written, left = [], MOST_BYTES
    for part in parts:
        try:
            with _opened(folder, _name(part)) as file:
                try:
                    async for piece in _content(part, agent, http):
                        left -= len(piece)
                        _check_room(left, part)
                        file.write(piece)
                except BaseException:
                    os.unlink(file.name)  # noqa: PTH108 - what has come is no file
                    raise
                written.append(Path(file.name))
        except OSError as error:
            msg = f"{folder} cannot be written ({error.strerror}): name another one with --out."
            raise ConfigurationError(msg) from error
    return written


async def _content(
    part: Part, agent: AgentOrigins, http: httpx.AsyncClient
) -> AsyncIterator[bytes]:
    """Yield a file's content in pieces, by its link if it has one."""
    if not part.HasField("url"):
        yield part.raw
        return
    try:
        async with http.stream("GET", agent.check(part.url)) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                yield piece
    except (httpx.HTTPError, httpx.InvalidURL, RefusedUrlError) as error:
        raise ConfigurationError(f"The file at {part.url} cannot be fetched: {error}") from error


def _check_room(left: int, part: Part) -> None:
    if left < 0:
        raise ConfigurationError(
            f"The files have more than {MOST_BYTES:,} bytes in all, the most that --out keeps:"
            f" fetch {part.url or _name(part)} by itself."
        )


def _opened(folder: Path, name: str) -> Any:
    """Open a new file; one of this name that is there stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - `.x` has no suffix
    number = 1
    while True:
        try:
            return (folder / (name if number == 1 else f"{stem}-{number}{suffix}")).open("xb")
        except FileExistsError:
            number += 1


def _name(part: Part) -> str:
    """Return a name for a file that leads out of no folder and hides nothing."""
    given = part.filename or (unquote(urlsplit(part.url).path) if part.HasField("url") else "")
    name = printable(given.replace("\\", "/").rpartition("/")[2]).strip(". ")
    return name[-200:] or _NO_NAME + (mimetypes.guess_extension(part.media_type) or "")
