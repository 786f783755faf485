"""Serves the application of stream.py by uvicorn; stream.sh runs it."""

from __future__ import annotations

import os

from a2a_serverless.starting import without_collections

with without_collections():
    import uvicorn

    from stream import app


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(os.environ.get("AWS_LWA_PORT") or os.environ.get("PORT") or 8080),
        lifespan="off",
        log_config=None,  # its loggers write as all others
        access_log=False,
        workers=1,
        timeout_graceful_shutdown=1,
    )
