"""What the functions need of Secrets Manager: to read a current value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind


@contextmanager
def secrets_manager(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A Secrets Manager with these secrets; gives the variable that leads to it."""

    async def answer(request: Request) -> Response:
        assert request.headers["X-Amz-Target"] == "secretsmanager.GetSecretValue"
        wanted = await request.json()
        name, stage = wanted["SecretId"], wanted.get("VersionStage", "AWSCURRENT")
        if name in values and stage == "AWSCURRENT":
            return JSONResponse({"Name": name, "SecretString": values[name]})
        return JSONResponse({"__type": "ResourceNotFoundException"}, 400)

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    with HttpServer(app, bind(0), lifespan=False) as server:
        yield {"AWS_ENDPOINT_URL_SECRETS_MANAGER": server.url}
