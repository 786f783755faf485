"""Watches over every test: nothing that a task is about gets into a line of the log, and no link.

What a task is about is taken from the storage: every text, file, value and secret that a test
commits, in whatever backend. A test in whose log one of these texts is found fails, and the line is
shown.

The lines are those of this process: the runtime's own at every level, those of the libraries in
`_LIBRARIES` from the level on that a deployed function lets through at POWERTOOLS_LOG_LEVEL DEBUG,
everybody else's from WARNING on. Of other processes nothing is known here. What they have said is
searched with `spoken` where a test starts them: the commands in tests/e2e/test_observability.py.
"""

import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message

from a2a_serverless.observability import quiet_libraries
from a2a_serverless.observability.json_lines import _JsonLines
from a2a_serverless.observability.logs import with_context
from a2a_serverless.storage import durable, endings, webhooks
from a2a_serverless.tasks import push

TELLING = 5
"""Characters from which on a text is looked for in the values of a line."""
UNMISTAKABLE = 12
"""Characters from which on it is looked for in the line's own words, too."""

_CONTENT = frozenset({"text", "raw", "string_value", "token", "credentials", "filename"})
_AUTHORS = frozenset({"questionId", "schema"})
"""Fields of a question's metadata with words of the agent's author, such as a step's name."""
_OWN_WORDS = frozenset({"action", "error", "level", "location", "message", "name", "operation"})
_OWN_WORDS |= {"outcome", "reason", "service", "state", "timestamp"}
"""Fields whose values are words of ours."""
_LINK = re.compile(r"[?&](X-Amz-Signature|signature)=", re.IGNORECASE)
"""Matches a link to a file that anyone may fetch, as a bucket and this service sign it."""
_MOST = 5_000
"""Commits that are looked through of one test."""


class LogWatch(logging.Handler):
    """Keeps the lines and the contents of one test at a time."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.addFilter(with_context)
        self._lines = _JsonLines("tests")
        self._records: list[logging.LogRecord] = []
        self._contents: list[object] = []
        self._own: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def saw(self, content: object) -> None:
        """Take note of entries, or of a push configuration, on the way to the storage."""
        if len(self._contents) < _MOST:
            self._contents.append(content)

    def said_itself(self, text: str) -> None:
        """Take note of a sentence by which the runtime itself ends a task."""
        self._own.add(text)

    def begin(self) -> None:
        """Forget what was before, also a command's levels."""
        quiet_libraries(logging.DEBUG)
        self._records, self._contents = [], []

    def leaks(self) -> list[str]:
        """The lines that hold a part of what was committed, each with that part."""
        texts = {text for content in self._contents for text in _texts(content)}
        texts = {text for text in texts - self._own if len(text) >= TELLING}
        return [leak for record in self._records for leak in self._leaks(record, texts)]

    def _leaks(self, record: logging.LogRecord, texts: Iterable[str]) -> Iterator[str]:
        line = self._lines.format(record)
        shown = json.loads(line)
        told = shown.get("exception", "").splitlines()
        shown["exception"] = "\n".join(each for each in told if not each.startswith("  "))  # code
        values = json.dumps([v for k, v in shown.items() if k not in _OWN_WORDS] + _said(record))
        everything = json.dumps(shown)
        if _LINK.search(everything):
            yield f"a link to a file in {line}"
        for text in texts:
            written = json.dumps(text)[1:-1]
            is_long = len(text) >= UNMISTAKABLE
            if written in everything if is_long else _has_word(values, written):
                yield f"{text!r} in {line}"


def spoken(said: str, contents: Iterable[str]) -> list[str]:
    """Return those of `contents` that a process has said: as they are, or as JSON writes them."""
    return [text for text in contents if text in said or json.dumps(text)[1:-1] in said]


def _has_word(values: str, text: str) -> bool:
    """Whether a short text stands by itself: "raise" is not said by "raised"."""
    return text in values and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", values) is not None


def _said(record: logging.LogRecord) -> list[str]:
    """What a message's placeholders were filled with."""
    given = record.args
    values = given.values() if isinstance(given, Mapping) else given or ()
    return [str(value) for value in values]


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, Message):
        for field, value in content.ListFields():
            yield from _field_texts(field.name, value)
    elif isinstance(content, list | tuple):
        for part in content:
            yield from _texts(part)
    elif hasattr(content, "__dataclass_fields__"):
        for part in fields(content):  # type: ignore[arg-type]  # an entry
            yield from _texts(getattr(content, part.name))


def _field_texts(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from [value] if name in _CONTENT else []
    elif isinstance(value, bytes):
        yield from [value.decode(errors="ignore")] if name in _CONTENT else []
    elif isinstance(value, Message):
        yield from _texts(value)
    elif hasattr(value, "values"):  # a Struct's fields: protobuf's map is no Mapping
        for key, part in value.items():
            yield from _texts(part) if key not in _AUTHORS else ()
    elif isinstance(value, Iterable):
        for part in value:
            yield from _field_texts(name, part)


WATCH = LogWatch()


def pytest_configure(config: pytest.Config) -> None:
    """Watch all loggers, and everything on its way to a storage.

    `caplog` sees what it would see without.
    """
    logging.getLogger().addHandler(WATCH)
    logging.getLogger("a2a_serverless").setLevel(logging.DEBUG)
    config.option.log_level = config.option.log_level or "WARNING"
    _watch(durable, "encode_entries", WATCH.saw)
    _watch(webhooks, "checked", WATCH.saw)
    _watch(push, "checked", WATCH.saw)
    _watch(endings, "Part", WATCH.said_itself)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has let a content into the log."""
    WATCH.begin()
    result = yield
    if leaks := WATCH.leaks():
        pytest.fail("content in the log: " + "\n".join(leaks), pytrace=False)
    return result


def _watch(module: Any, name: str, note: Callable[[Any], None]) -> None:
    function: Callable[..., object] = getattr(module, name)

    def watching(*arguments: Any, **named: Any) -> object:
        note([*arguments, *named.values()][0])
        return function(*arguments, **named)

    setattr(module, name, watching)
