"""Which pages in browsers may call, and what they may send and read (Fetch, CORS)."""

from __future__ import annotations

import re
from typing import Any, Final

from a2a.utils.constants import VERSION_HEADER

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.context import EXTENSION_HEADERS

ANY: Final = "*"
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.\-\[\]:]+", re.IGNORECASE)
_METHODS: Final = ("GET", "POST", "DELETE")
_SENT: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Prefer",
    "X-API-Key",
    VERSION_HEADER,
    *EXTENSION_HEADERS,
)
_READ: Final = ("Retry-After", "WWW-Authenticate", *EXTENSION_HEADERS)
_PREFLIGHT_S: Final = 600


def origins_of(text: str) -> tuple[str, ...]:
    """Return the origins of a setting, in lower case; `*` stands for every origin.

    Raises:
        ConfigurationError: one is no origin, such as a URL with a path.
    """
    origins = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            msg = f"A2A_CORS_ORIGINS: {origin!r} is no origin: write https://HOST, without a path."
            raise ConfigurationError(msg)
    return origins


def browser_access(text: str) -> dict[str, Any]:
    """Return the arguments of Starlette's CORSMiddleware for a setting, see `origins_of`.

    Pages may not send cookies, because callers are not recognised by cookies.
    """
    return {
        "allow_origins": origins_of(text),
        "allow_methods": _METHODS,
        "allow_headers": _SENT,
        "expose_headers": _READ,
        "max_age": _PREFLIGHT_S,
    }
