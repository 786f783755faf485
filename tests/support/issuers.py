"""An OpenID Connect issuer on this machine, whose keys and tokens a test chooses."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind

AUDIENCE = "https://agent.example"

_CURVES: Mapping[str, type[Any]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}


def private_key(algorithm: str, number: int = 0) -> Any:
    """A key that the whole run shares; `number` tells apart those of one algorithm."""
    return _private_key(algorithm, number)


@cache
def _private_key(algorithm: str, _: int) -> Any:
    if algorithm in _CURVES:
        return ec.generate_private_key(_CURVES[algorithm]())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_jwk(algorithm: str, kid: str | None, number: int = 0, **fields: Any) -> dict[str, Any]:
    public = private_key(algorithm, number).public_key()
    jwk = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    return {**jwk, **({} if kid is None else {"kid": kid}), **fields}


class Issuer:
    """What the server says, and how often it was asked. `status` other than 200 is a failure."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[Any] = [public_jwk("ES256", "first")]
        self.discovery: dict[str, Any] | None = None
        self.status = 200
        self.body: bytes | None = None
        self.asked: list[str] = []

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/keys", self._keys),
                Route("/moved", lambda _: RedirectResponse("/keys")),
                Route("/{path:path}", self._other),
            ]
        )

    def token(
        self,
        claims: Mapping[str, Any] | None = None,
        *,
        algorithm: str = "ES256",
        number: int = 0,
        kid: str | None = "first",
        headers: Mapping[str, Any] | None = None,
    ) -> str:
        """A good token; a claim of None is left out, one of a timedelta is counted from now."""
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300}
        said |= claims or {}
        said = {
            name: now + int(value.total_seconds()) if isinstance(value, timedelta) else value
            for name, value in said.items()
            if value is not None
        }
        header = {**({} if kid is None else {"kid": kid}), **(headers or {})}
        return jwt.encode(said, private_key(algorithm, number), algorithm, headers=header)

    async def _discovery(self, request: Request) -> Response:
        own = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return self._answer(request, self.discovery or own)

    async def _keys(self, request: Request) -> Response:
        return self._answer(request, {"keys": self.keys})

    async def _other(self, request: Request) -> Response:
        return self._answer(request, {})

    def _answer(self, request: Request, content: Any) -> Response:
        self.asked.append(request.url.path)
        if self.body is not None:
            return Response(self.body, self.status)
        return JSONResponse(json.loads(json.dumps(content)), self.status)


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    with HttpServer(issuer.app(), bind(0), lifespan=False) as server:
        issuer.url = server.url
        yield issuer
