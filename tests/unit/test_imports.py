"""What a cold start loads. How long it takes, tests/artefact measures."""

from __future__ import annotations

from benchmarks.imports import loaded

WEB = {"fastapi", "mangum", "sse_starlette", "starlette.routing", "uvicorn"}
NOBODY_NEEDS = {"aws_xray_sdk", "boto3", "moto", "pydantic.v1", "pydantic_settings", "s3transfer"}


def test_a_worker_loads_no_web_framework() -> None:
    """The worker's handler loads neither a web framework nor what is slow and does nothing."""
    assert not loaded("worker") & (WEB | NOBODY_NEEDS)


def test_the_api_loads_what_it_needs() -> None:
    """The API's handler loads nothing of the worker, and nothing that is slow and does nothing."""
    modules = loaded("api")
    assert not modules & NOBODY_NEEDS
    assert not [name for name in modules if name.startswith("a2a_serverless.worker.")]
