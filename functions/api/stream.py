"""StreamFunction: the same application, served by uvicorn (stream.sh), events as they happen."""

from __future__ import annotations

from pathlib import Path

from a2a_serverless.starting import cold_start

with cold_start():
    from a2a_serverless.http.function import app_from_environment, observed

    app = observed(app_from_environment("stream", folder=Path(__file__).parent))
