"""The form of errors before 1.0, which every refusal of such a request has.

It loads none of the models of 0.3, because it stands before all requests.
"""

from __future__ import annotations

import json

from a2a.utils.errors import A2A_REASON_TO_ERROR, JSON_RPC_ERROR_CODE_MAP
from starlette.requests import Request

from a2a_serverless.http import V0_3_PREFIX
from a2a_serverless.http.context import names_1_0


def is_0_3(request: Request) -> bool:
    """Return True for a request under `/v1/` that does not say that it is of 1.0."""
    return bool(request.scope["path"].startswith(V0_3_PREFIX)) and not names_1_0(request)


def without_details(body: bytes) -> bytes:
    """Return the body of an error over JSON-RPC without the typed details, which only 1.0 has."""
    content = json.loads(body)
    if isinstance(content["error"].get("data"), list):
        del content["error"]["data"]
    return json.dumps(content).encode()


def with_code(body: bytes) -> bytes:
    """Return the body of an error, the protocol's or HTTP's, with code and message at its top.

    The code is that of JSON-RPC (0.3, section 8); HTTP's own errors have no such code.
    """
    content = json.loads(body)
    error = content["error"]
    reasons = [detail.get("reason") for detail in error.get("details", [])]
    kinds = [A2A_REASON_TO_ERROR[reason] for reason in reasons if reason in A2A_REASON_TO_ERROR]
    codes = [JSON_RPC_ERROR_CODE_MAP[kind] for kind in kinds if kind in JSON_RPC_ERROR_CODE_MAP]
    top = {"code": codes[0] if codes else error["code"], "message": error["message"]}
    return json.dumps({**content, **top}).encode()
