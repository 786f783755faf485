"""The move of a client from its key to tokens, over an Auth that takes both."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

import httpx

from tests.live.ground import changed, public_function
from tests.live.subject import (
    NotPossibleError,
    Subject,
)
from tests.support.a2a_calls import JSONRPC, REST, Agent
from tests.support.issuers import AUDIENCE, Issuer

TAKEN_S: Final = 60.0
"""How long a process with the former configuration may answer."""
HOUR: Final = timedelta(hours=1)
FOUND: Final = ""
TASK: Final = "TASK_NOT_FOUND"
REFUSED: Final = "UNAUTHENTICATED"

ISSUER: Final = '''
"""Publishes a key as an issuer of tokens does (OpenID Connect Discovery 1.0)."""

import json
import os


def handler(event, context):
    base = "https://" + event["requestContext"]["domainName"]
    found = {"issuer": base, "jwks_uri": base + "/keys"}
    if event["rawPath"] == "/keys":
        found = {"keys": [json.loads(os.environ["KEY"])]}
    return {"statusCode": 200, "body": json.dumps(found)}
'''

Headers = Mapping[str, str]


async def move(subject: Subject, meanwhile: Callable[[Subject], Awaitable[None]]) -> None:
    """Move a client whose tokens are named to both, to tokens, and back.

    Wherever one of its credentials is taken, the client has its task, and another client has not.
    """
    _, stack = subject.changeable()
    if stack.parameters["Auth"] != "api-key":
        raise NotPossibleError("needs a stack with Auth=api-key, where the move begins")
    issuer = subject.ground.tokens or await _issuer(subject)
    task_id = await subject.begin("say")
    await _name_tokens(subject, issuer)
    tokens = {"OidcIssuer": issuer.url, "OidcAudience": AUDIENCE}
    await changed(subject, Auth="api-key+oidc", **tokens)
    await meanwhile(subject)
    key = {"X-API-Key": subject.credential}
    mine, other = (
        {"Authorization": f"Bearer {issuer.token({'sub': f'{name}-{subject.run}', 'exp': HOUR})}"}
        for name in ("client", "other")
    )
    forms: dict[str, dict[str, tuple[Headers, str]]] = {
        "api-key+oidc": {"token": (mine, FOUND), "key": (key, FOUND), "other": (other, TASK)},
        "oidc": {"token": (mine, FOUND), "key": (key, REFUSED), "other": (other, TASK)},
        "api-key": {"key": (key, FOUND), "token": (mine, REFUSED)},
    }
    for auth, cases in forms.items():
        own = tokens if "oidc" in auth else dict.fromkeys(tokens, "")
        await subject.ground.update(subject, {"Auth": auth, **own})
        for case, (shown, expected) in cases.items():

            async def look(shown: Headers = shown, expected: str = expected) -> bool:
                return await _reasons(subject, task_id, shown) == {expected}

            what = f"under {auth} the answer {expected or 'to find it'} for {case}"
            await subject.until(what, look, within_s=TAKEN_S, every_s=1)


async def _reasons(subject: Subject, task_id: str, shown: Headers) -> set[str]:
    """Ask both functions for a task; return the reasons of the refusals, empty for none."""
    reasons = set[str]()
    for binding in (REST, JSONRPC):
        try:
            agent = Agent(subject.anonymous, binding)
            reasons.add((await agent.call("GetTask", {"id": task_id}, shown)).reason)
        except (httpx.HTTPError, ValueError, LookupError):  # of a process that was just ended
            return {"no answer"}
    return reasons


async def _name_tokens(subject: Subject, issuer: Issuer) -> None:
    """Add the caller of the client's tokens to the name of its key, before a process reads it.

    Raises:
        NotPossibleError: the client's key is not in the stack's secret.
    """
    account, stack = subject.on_aws()
    secret = stack.outputs["ApiKeys"]
    found = await account.call("secretsmanager", "get_secret_value", SecretId=secret)
    before = str(found["SecretString"])
    keys = {n: it if isinstance(it, list) else [it] for n, it in json.loads(before).items()}
    name = next((name for name, its in keys.items() if subject.credential in its), None)
    if name is None:
        raise NotPossibleError("needs a key of the stack's secret as the client's")

    async def give(text: str) -> None:
        await account.call("secretsmanager", "put_secret_value", SecretId=secret, SecretString=text)

    subject.made.note("keys", secret, lambda: give(before))
    tokens = f"oidc:{issuer.url}|client-{subject.run}"
    await give(json.dumps({**keys, name: [*keys[name], tokens]}))


async def _issuer(subject: Subject) -> Issuer:
    """Make a function that is an issuer of tokens."""
    issuer = Issuer()
    key = json.dumps(issuer.keys[0])
    issuer.url, _ = await public_function(subject, "issuer", ISSUER, key)
    return issuer
