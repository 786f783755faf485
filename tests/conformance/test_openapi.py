"""Whatever the OpenAPI description allows, and what it forbids, is answered as it describes.

`A2A_SCHEMATHESIS` is the number of examples in all, 100 by default; the long form is 2,000.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from a2a_serverless.http import JSONRPC_PATHS, SUBMIT_PATH
from a2a_serverless.http.app import create_app
from a2a_serverless.http.middleware import is_rest_1_0
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.conformance.test_client import CARD

EXAMPLES = int(os.environ.get("A2A_SCHEMATHESIS", "100"))
INTERNAL_ERROR = -32603
STREAMS = (":stream", ":subscribe")
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]

# No worker answers here: what is sent comes back at the limits.
CHOICES = Settings(
    auth="none",
    blocking_limit_s=0.01,
    stream_limit_s=0.01,
    older_dialects=True,
    push_queue="pushes.fifo",
)
APP = create_app(CHOICES, memory_backends(CHOICES), CARD, entrypoint="stream")
SENTENCE = re.compile(r"\S+ .*\S", re.DOTALL)
INNER = ("Traceback", "validation error", "Failed to parse", "pydantic", "google.", "Error:")
"""What parsers and libraries say."""


def check_error(body: Any, *, is_0_3: bool = False) -> None:
    """Assert that an error says it in words of ours, over HTTP+JSON of 0.3 at its top as well."""
    if isinstance(body, dict) and "error" in body:
        said = body["error"]["message"]
        assert SENTENCE.fullmatch(said), said
        assert not [words for words in INNER if words in said], said
        assert not is_0_3 or body["message"] == said


def has_a_sentence(_: Any, response: Any, case: Any) -> None:
    if "json" in response.headers.get("content-type", [""])[0]:
        check_error(response.json(), is_0_3=case.operation.path.startswith("/v1/"))


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, has_a_sentence]
DESCRIPTION = APP.openapi()
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
SCHEMA.app = APP


def pairs() -> Iterator[Any]:
    for found in SCHEMA.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        for mode in MODES:
            # Where nothing is read nothing can be wrong.
            if mode == GenerationMode.POSITIVE or "{" in operation.path or operation.headers:
                yield pytest.param(operation, mode, id=f"{operation.label} {mode.value}")


PAIRS = list(pairs())
EACH = math.ceil(EXAMPLES / len(PAIRS))
GENERATED = settings(
    max_examples=EACH,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.long(one_in=5)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("operation", "mode"), PAIRS)
def test_answers_are_as_described(operation: Any, mode: GenerationMode) -> None:
    """Generated requests, right and wrong ones, get no other status and no other media type."""
    statuses: list[int] = []

    @GENERATED
    @given(case=operation.as_strategy(generation_mode=mode))
    def examples(case: Any) -> None:
        response = case.call()
        statuses.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    examples()
    assert statuses


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in DESCRIPTION["paths"].items():
        for verb, operation in verbs.items():
            yield path, verb, operation


@pytest.mark.parametrize("older", [True, False])
def test_it_has_what_is_served(*, older: bool) -> None:
    """Of the package's file the routes of these settings, under the texts of the card."""
    chosen = CHOICES.model_copy(update={"older_dialects": older})
    described = create_app(chosen, memory_backends(chosen), CARD).openapi()
    left_out = set() if older else {SUBMIT_PATH}
    assert set(DESCRIPTION["paths"]) - set(described["paths"]) == left_out
    texts = {"title": CARD.name, "description": CARD.description, "version": CARD.version}
    assert described["info"] == texts


def test_every_operation_says_what_it_does() -> None:
    """By a name and a sentence of its own; each answer with a body has its binding's types."""
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names)) > 20
    for path, verb, operation in operations():
        assert " " in operation["summary"]
        assert "Guarded" not in operation["summary"]
        found = {status: set(r.get("content", {})) for status, r in operation["responses"].items()}
        assert found.pop("304", found.pop("204", set())) == set()
        results = found.pop("200")
        streams = path in JSONRPC_PATHS or path.endswith(STREAMS)
        assert ("text/event-stream" in results) == streams
        assert {"400", "414", "431", "500"} <= set(found), (verb, path)
        taken = {"application/json"} | ({"application/a2a+json"} if is_rest_1_0(path) else set())
        assert all(media_types == taken for media_types in found.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def some(**members: Any) -> Any:
    """Objects with some of these members."""
    return st.fixed_dictionaries({}, optional=members)


def one_of(*words: str) -> Any:
    return st.sampled_from(words)


PART = JSON | some(
    type=one_of("text", "data", "file", "video") | JSON,
    kind=one_of("text", "data", "file"),
    text=st.text(max_size=20) | JSON,
    data=JSON,
    file=JSON | some(bytes=JSON, uri=JSON),
    metadata=JSON,
)
MESSAGE = JSON | some(
    messageId=st.text(max_size=5) | JSON,
    role=one_of("user", "agent", "king") | JSON,
    parts=st.lists(PART, max_size=2) | JSON,
    metadata=JSON,
    contextId=JSON,
)
CONFIG = some(
    id=JSON,
    url=one_of("https://10.0.0.7/", "https://93.184.216.34/") | JSON,
    token=JSON,
    authentication=JSON | some(schemes=JSON),
)
ID = one_of("t-1", "t-2", "no id/at all", "") | JSON
OTHERS = ("sessionId", "historyLength", "acceptedOutputModes", "metadata", "configuration")
PARAMS = JSON | some(
    **dict.fromkeys(("id", "taskId", "pushNotificationConfigId"), ID),
    **dict.fromkeys((*OTHERS, "pushNotification"), JSON),
    message=MESSAGE,
    pushNotificationConfig=JSON | CONFIG,
)
UNDESCRIBED = [
    *("tasks/send", "tasks/sendSubscribe", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
    *("tasks/submit", "tasks/status", "message/send", "message/stream"),
    *(f"tasks/pushNotificationConfig/{verb}" for verb in ("set", "get", "list", "delete")),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", UNDESCRIBED)
def test_no_older_request_breaks_the_server(method: str) -> None:
    """So do the methods of older versions, which OpenAPI does not describe."""

    async def post(client: httpx.AsyncClient, body: Any) -> httpx.Response:
        content = json.dumps(body).encode()  # ASCII, so that lone surrogates can be sent
        return await client.post("/", content=content, headers={"Content-Type": "application/json"})

    with asyncio.Runner() as runner:
        transport = httpx.ASGITransport(APP)
        client = httpx.AsyncClient(transport=transport, base_url="http://test")

        @GENERATED
        @given(params=PARAMS, request_id=st.integers() | st.text(max_size=5) | JSON)
        def examples(params: Any, request_id: Any) -> None:
            body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            response = runner.run(post(client, body))
            assert response.status_code < 500, response.text
            if response.headers["content-type"] == "application/json":
                check_error(response.json())
                error = response.json().get("error", {})
                assert error.get("code") != INTERNAL_ERROR, error

        examples()
        runner.run(client.aclose())
