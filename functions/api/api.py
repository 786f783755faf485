"""ApiFunction: A2A over API Gateway, each answer in one piece."""

from __future__ import annotations

from pathlib import Path

from a2a_serverless.starting import cold_start

with cold_start():
    from a2a_serverless.http.function import app_from_environment, lambda_handler

    handler = lambda_handler(app_from_environment("api", folder=Path(__file__).parent))
