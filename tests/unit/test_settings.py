"""The settings that bound what one address serves, and whether its backends are there."""

from __future__ import annotations

from unittest import mock

import pytest

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.wiring import INDEXES_OF_WORKER, check_backends, memory_backends, table_backends


@pytest.mark.parametrize(
    ("variable", "taken", "refused"),
    [
        ("A2A_BLOCKING_LIMIT_S", "28", "29"),  # API Gateway ends it after 29 s
        ("A2A_STREAMS_PER_CALLER", "1", "0"),
        ("A2A_STREAMS_IN_ALL", "7", "0"),
        ("A2A_PUBLIC_URL", "http://127.0.0.1:8000/agents/", "localhost:8000"),
        ("A2A_PUBLIC_URL", "https://a.example", "https://"),
        ("A2A_PUBLIC_URL", "https://a.example", "https://a?b"),
        ("A2A_VISIBILITY_S", "43200", "43201"),  # SQS hides a message for 12 hours at most
        ("A2A_TTL_DAYS", "1", "inf"),
        ("A2A_CANCEL_TIMEOUT_S", "1", "1e999"),
        ("A2A_WAITING_S", "60", "nan"),
    ],
)
def test_what_cannot_be_is_refused(variable: str, taken: str, refused: str) -> None:
    """One sentence names the variable: of a bound, of no URL, of a time that nothing can store."""
    found = str(getattr(load_settings({variable: taken}), variable.removeprefix("A2A_").lower()))
    assert found.rstrip("/") in (taken.rstrip("/"), f"{taken}.0")
    with pytest.raises(ConfigurationError, match=f"^{variable}: .*[.]$"):
        load_settings({variable: refused})


def test_open_streams_are_bounded() -> None:
    """Those of one caller and of all, by default."""
    settings = load_settings({})
    assert (settings.streams_per_caller, settings.streams_in_all) == (50, 500)


def test_shared_turns_need_a_worker_that_outlasts_them() -> None:
    """Where no turn fits beside the spare time, it is the worker's time that is too short."""
    settings = load_settings({"A2A_WORKER_TURNS": "2", "A2A_RUN_LIMIT_S": "60"})
    with pytest.raises(ConfigurationError, match="needs an A2A_RUN_LIMIT_S of 76 or more"):
        settings.check_sharing()


@pytest.mark.parametrize(
    ("part", "raised", "told"),
    [
        (
            "storage.head",
            LookupError("no such resource"),
            "The table my-table cannot be used: no such",
        ),
        ("storage.head", UnavailableError(), None),
        ("operations.check", ConfigurationError("The queue my-queue does not exist."), "my-queue"),
    ],
)
async def test_a_missing_backend_is_named(
    part: str, raised: Exception, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence names what cannot be used; an outage keeps its own error."""
    backends = memory_backends(Settings())
    owner, name = part.split(".")
    monkeypatch.setattr(getattr(backends, owner), name, mock.AsyncMock(side_effect=raised))
    with pytest.raises(ConfigurationError if told else type(raised), match=told):
        await check_backends(backends, Settings(table="my-table"))


async def test_a_missing_index_is_named() -> None:
    """A process does not start on a table that lacks an index: the sentence names it."""
    for missing in INDEXES:
        table = MemoryTable({name: index for name, index in INDEXES.items() if name != missing})
        with pytest.raises(ConfigurationError, match=f"no index {missing}"):
            await check_backends(table_backends(Settings(), table), Settings())


async def test_a_worker_asks_for_its_own_indexes_alone() -> None:
    """A worker starts where it may read no index but its own, as with the role of fargate.yaml."""
    table = MemoryTable({name: INDEXES[name] for name in INDEXES_OF_WORKER})
    await check_backends(table_backends(Settings(), table), Settings(), INDEXES_OF_WORKER)


# -- settings in one variable ----------------------------------------------------------------------


def test_settings_of_one_variable() -> None:
    """A2A_SETTINGS has further settings; a value may have commas."""
    text = "A2A_FLUSH_MS=500, A2A_PUSH_ALLOWED_HOSTS=10.0.0.0/8, hooks.internal,A2A_TASK_COST=0.5"
    found = load_settings({"A2A_SETTINGS": text, "A2A_TTL_DAYS": "7"})
    assert (found.flush_ms, found.task_cost, found.ttl_days) == (500, 0.5, 7)
    assert found.push_allowed_hosts == "10.0.0.0/8,hooks.internal"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A2A_FLUSH=5", "A2A_SETTINGS has A2A_FLUSH, which is no setting; A2A_FLUSH_MS is one."),
        ("A2A_FLUSH_MS=x", "A2A_SETTINGS: A2A_FLUSH_MS: Input should be a valid integer"),
        ("A2A_FLUSH_MS=1", "A2A_SETTINGS: A2A_FLUSH_MS: Input should be greater than"),
        ("OTEL_TRACES_SAMPLER_ARG=2", "A2A_SETTINGS: OTEL_TRACES_SAMPLER_ARG: Input should be"),
        ("A2A_TTL_DAYS=1,A2A_TTL_DAYS=1", "A2A_SETTINGS has A2A_TTL_DAYS twice"),
        ("A2A_API_KEYS=a=b", "A2A_SETTINGS has A2A_API_KEYS, which is a secret"),
        ("flush_ms=5", "A2A_SETTINGS has an entry that is not of the form NAME=value"),
        ("A2A_FLUSH_MS=50,flush=5", "A2A_SETTINGS has an entry that is not of the form"),
        ("A2A_BLOBS=mine", "A2A_SETTINGS has A2A_BLOBS, and the environment has another value"),
    ],
)
def test_settings_of_one_variable_that_are_refused(text: str, words: str) -> None:
    """One sentence names the entry."""
    with pytest.raises(ConfigurationError) as refused:
        load_settings({"A2A_SETTINGS": text, "A2A_BLOBS": "other"})
    assert str(refused.value).startswith(words)
