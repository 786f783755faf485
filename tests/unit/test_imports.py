"""What a cold start loads, measured as benchmarks/imports.py does."""

from __future__ import annotations

import pytest

from benchmarks.imports import STOCK, Import, measure, ratio

WEB = {"fastapi", "mangum", "sse_starlette", "starlette.routing", "uvicorn"}
NOBODY_NEEDS = {"aws_xray_sdk", "boto3", "moto", "pydantic.v1", "pydantic_settings", "s3transfer"}


@pytest.fixture(scope="module")
def taken() -> dict[str, list[Import]]:
    """The imports of two handlers and of the official SDK's server, in turns."""
    return measure([STOCK, "worker", "api"], rounds=1, from_source=True)


def test_a_worker_loads_no_web_framework(taken: dict[str, list[Import]]) -> None:
    """The worker's handler loads neither a web framework nor what is slow and does nothing."""
    assert not taken["worker"][0].modules & (WEB | NOBODY_NEEDS)


def test_the_api_loads_what_it_needs(taken: dict[str, list[Import]]) -> None:
    """The API's handler loads nothing of the worker, and nothing that is slow and does nothing."""
    loaded = taken["api"][0].modules
    assert not loaded & NOBODY_NEEDS
    assert not [name for name in loaded if name.startswith("a2a_serverless.worker.")]


def test_imports_keep_up_with_the_official_server(taken: dict[str, list[Import]]) -> None:
    """The worker's imports are not slower than the SDK's server's, the API's not much.

    The bounds are wide, because a test may run beside others: the benchmark has the figures.
    """
    assert ratio(taken, "worker") < 1.3
    assert ratio(taken, "api") < 1.9
