"""The inspector of a running `dev`, over HTTP, because the tasks of `dev` are in its memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from a2a_serverless.errors import (
    A2AServerlessError,
    ConfigurationError,
    TaskNotCancelableError,
    TaskNotFoundError,
    TurnFinishedError,
    UnavailableError,
    UnsupportedOperationError,
)
from a2a_serverless.storage.deletion import Counted, Deleted
from a2a_serverless_tools.console.dev_file import RunningDev
from a2a_serverless_tools.console.inspector import EventLine, Inspector, Rows, TaskQuery
from a2a_serverless_tools.console.letters import Aside, Letter, Letters
from a2a_serverless_tools.console.lines import LogLine
from a2a_serverless_tools.inspect.timeline import Timeline

T = TypeVar("T")

API: Final = "/_console/api"
"""The path below which the console answers programs."""

TIMELINES: Final = TypeAdapter(list[Timeline])
ROWS: Final = TypeAdapter(Rows)
QUERY: Final = TypeAdapter(TaskQuery)
EVENT: Final = TypeAdapter(EventLine)
COUNTED: Final = TypeAdapter(Counted)
DELETED: Final = TypeAdapter(Deleted)
LINES: Final = TypeAdapter(list[LogLine])
LETTERS: Final = TypeAdapter(list[Letter])

ERRORS: Final[Mapping[str, type[A2AServerlessError]]] = {
    error.__name__: error
    for error in (
        TaskNotFoundError,
        TaskNotCancelableError,
        TurnFinishedError,
        UnsupportedOperationError,
        ConfigurationError,
        UnavailableError,
    )
}
"""Errors that the console's JSON names, and that are raised here again."""

_ANSWER_S: Final = 60.0


class RemoteInspector(Inspector):
    """Reads the tasks of a running `dev`."""

    has_logs = True

    def __init__(self, dev: RunningDev) -> None:
        self.place = f"dev at {dev.url}"
        self._dev = dev

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._dev.url + API,
            headers={"Authorization": f"Bearer {self._dev.token}"},
            timeout=_ANSWER_S,
            trust_env=False,
        )

    async def timelines(self, task_id: str, scope: str | None = None) -> list[Timeline]:
        answer = await self._ask("GET", "/task", id=task_id, scope=scope or "")
        return _read(TIMELINES, answer)

    async def events(
        self, task_id: str, scope: str, *, is_followed: bool = False
    ) -> AsyncIterator[EventLine]:
        params = {"id": task_id, "scope": scope, "follow": "1" if is_followed else ""}
        try:
            async with (
                self._client() as client,
                client.stream(
                    "GET", "/events", params=params, timeout=httpx.Timeout(_ANSWER_S, read=None)
                ) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    _check(answer)
                async for line in answer.aiter_lines():
                    if line:
                        yield EVENT.validate_json(line)
        except httpx.HTTPError as error:
            raise self._gone() from error

    async def lines(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        for line in _read(LINES, await self._ask("GET", "/lines", id=task_id, since=since_ms)):
            yield line

    async def tasks(self, query: TaskQuery) -> Rows:
        asked = QUERY.dump_python(query, exclude_none=True)
        return _read(ROWS, await self._ask("GET", "/tasks", **asked))

    async def count(self, scope: str, state: str) -> int:
        return int((await self._ask("GET", "/count", scope=scope, state=state)).json()["count"])

    async def cancel(self, task_id: str, scope: str) -> str:
        return str((await self._ask("POST", "/cancel", id=task_id, scope=scope)).json()["state"])

    async def resend(self, task_id: str, scope: str) -> bool:
        return bool((await self._ask("POST", "/resend", id=task_id, scope=scope)).json()["is_due"])

    async def count_data(
        self, scope: str, context_id: str | None = None, *, after: str = ""
    ) -> Counted:
        asked = {"scope": scope, "after": after} | _context(context_id)
        return _read(COUNTED, await self._ask("GET", "/data", **asked))

    async def delete_data(self, scope: str, context_id: str | None = None) -> Deleted:
        asked = {"scope": scope} | _context(context_id)
        return _read(DELETED, await self._ask("POST", "/data/delete", **asked))

    def letters(self, aside: Aside) -> Letters:
        return _RemoteLetters(self._ask, aside)

    async def open_url(self) -> str:
        """Return a URL that opens its console once."""
        return str((await self._ask("POST", "/open")).json()["url"])

    async def _ask(self, method: str, path: str, **params: Any) -> httpx.Response:
        try:
            async with self._client() as client:
                answer = await client.request(method, path, params=params)
        except httpx.HTTPError as error:
            raise self._gone() from error
        return _check(answer)

    def _gone(self) -> ConfigurationError:
        return ConfigurationError(
            f"No answer from {self.place}, which has ended or hangs: start it again, or set"
            " A2A_TABLE to look at a table."
        )


class _RemoteLetters(Letters):
    """The messages set aside in a running `dev`; `ask` makes the requests."""

    def __init__(self, ask: Callable[..., Awaitable[httpx.Response]], aside: Aside) -> None:
        self._ask = ask
        self._aside = aside

    async def all(self) -> list[Letter]:
        return _read(LETTERS, await self._ask("GET", "/letters", queue=self._aside))

    async def delete(self, message_id: str) -> bool:
        asked = {"queue": self._aside, "message": message_id}
        return bool((await self._ask("POST", "/letters/delete", **asked)).json()["is_deleted"])


def _context(context_id: str | None) -> dict[str, str]:
    """Return the parameter that names a context; no parameter if all contexts are meant."""
    return {} if context_id is None else {"context": context_id}


def _check(answer: httpx.Response) -> httpx.Response:
    """Return an answer; raise the error that it names."""
    if answer.status_code == httpx.codes.OK:
        return answer
    try:
        said = answer.json()
        error = ERRORS[said["error"]](said["message"])
    except (ValueError, KeyError, TypeError):
        msg = f"The console has answered {answer.status_code}: is it of another release?"
        raise ConfigurationError(msg) from None
    raise error


def _read(adapter: TypeAdapter[T], answer: httpx.Response) -> T:
    try:
        return adapter.validate_json(answer.content)
    except ValidationError as error:
        msg = "The console's answer cannot be read: is it of another release?"
        raise ConfigurationError(msg) from error
