"""The move of a client from its key to tokens, over an Auth that takes both."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from typing import Final

import httpx

from tests.live.findings import Figures, NotPossibleError, require
from tests.live.ground import changed, public_function
from tests.live.subject import VERSION, Subject, answer_to, ordered, state
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


async def move(subject: Subject, meanwhile: Callable[[Subject], Awaitable[None]]) -> Figures:
    """Move a client whose tokens are named to both, to tokens, and back.

    Wherever one of its credentials is taken, the client has all tasks of both, one of which waits
    for its answer, and another client has none of them.
    """
    _, stack = subject.changeable()
    if stack.parameters["Auth"] != "api-key":
        raise NotPossibleError("needs a stack with Auth=api-key, where the move begins")
    issuer = subject.on().tokens or await _issuer(subject)
    tasks = [await subject.begin("say"), await subject.begin("ask")]
    await subject.ended(tasks[0])
    await _name_tokens(subject, issuer)
    tokens = {"OidcIssuer": issuer.url, "OidcAudience": AUDIENCE}
    await changed(subject, Auth="api-key+oidc", **tokens)
    await meanwhile(subject)
    mine, other, old = (
        {"Authorization": f"Bearer {issuer.token({'sub': f'{name}-{subject.run}', 'exp': lasts})}"}
        for name, lasts in (("client", HOUR), ("other", HOUR), ("client", -HOUR))
    )
    key = {"X-API-Key": subject.credential}

    async def sent(shown: Headers, message: dict[str, object]) -> str:
        params = {"message": message, "configuration": {"returnImmediately": True}}
        answer = await Agent(subject.anonymous, REST).call("SendMessage", params, shown)
        require("task" in answer.result, f"a message was answered {answer.response.status_code}")
        return str(answer.task["id"])

    async def taken(auth: str, **cases: tuple[Headers, str]) -> None:
        await subject.on().update(
            subject,
            {"Auth": auth, **dict.fromkeys(tokens, ""), **(tokens if "oidc" in auth else {})},
        )
        for case, (shown, expected) in cases.items():

            async def look(shown: Headers = shown, expected: str = expected) -> bool:
                return await _reasons(subject, tasks, shown) == {expected}

            what = f"under {auth} the answer {expected or 'to find all'} for {case}"
            await subject.until(what, look, within_s=TAKEN_S, every_s=1)

    await taken("api-key+oidc", token=(mine, FOUND), key=(key, FOUND), other=(other, TASK))
    for shown in ({**key, **mine}, {}, old, {"X-API-Key": f"{subject.credential}x"}):
        await _refused(subject, shown)
    await _shown(subject, {"apiKey", "bearer", "oidc"})
    asked = await subject.task(tasks[1])
    require(state(asked) == "INPUT_REQUIRED", f"the task that asks is {state(asked)}")
    await sent(mine, answer_to(asked, "say"))
    await subject.completed(tasks[1])
    tasks += [await sent(key, ordered("say")), await sent(mine, ordered("say"))]
    await taken("oidc", token=(mine, FOUND), key=(key, REFUSED), other=(other, TASK))
    await _shown(subject, {"oidc"})
    tasks.append(await sent(mine, ordered("say")))
    await taken("api-key", key=(key, FOUND), token=(mine, REFUSED))
    return {"tasks kept": len(tasks)}


async def _reasons(subject: Subject, tasks: Collection[str], shown: Headers) -> set[str]:
    """Ask both functions for each task; return the reasons of the refusals, empty for none."""
    reasons = set[str]()
    for binding in (REST, JSONRPC):
        for task_id in tasks:
            try:
                agent = Agent(subject.anonymous, binding)
                answer = await agent.call("GetTask", {"id": task_id}, shown)
            except (httpx.HTTPError, ValueError, LookupError):  # of a process that was just ended
                return {"no answer"}
            reasons.add(answer.reason)
    return reasons


async def _refused(subject: Subject, shown: Headers) -> None:
    """Require 401, with a challenge under its own name or that which API Gateway gives it."""
    answer = await subject.anonymous.get("/tasks", headers={**VERSION, **shown})
    what = f"{sorted(shown) or 'no credential'} was answered {answer.status_code}"
    require(answer.status_code == httpx.codes.UNAUTHORIZED, what)
    challenges = [v for k, v in answer.headers.items() if k.endswith("www-authenticate")]
    require(challenges and challenges[0].startswith("Bearer"), f"{what}, without a challenge")


async def _shown(subject: Subject, schemes: set[str]) -> None:
    """Require that one of these schemes is enough, by the card."""
    card = await subject.card()
    names = [set(one.schemes) for one in card.security_requirements]
    require(
        all(len(one) == 1 for one in names) and set().union(*names) == schemes,
        f"the card requires {names}, and not one of {sorted(schemes)}",
    )


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
