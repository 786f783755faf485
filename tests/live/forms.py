"""The forms of a stack: it is updated to each, checked there, and updated back."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx

from tests.live import agent, operations, streams, turns, webhooks
from tests.live.ground import changed, public_function
from tests.live.subject import Check, NotPossibleError, Subject, require, state, status_text
from tests.support.a2a_calls import JSONRPC, REST, Agent
from tests.support.issuers import AUDIENCE, Issuer

TURNS: Final = 10
WORKERS: Final = 2
OUTSIDE: Final = 6


async def shared(subject: Subject) -> None:
    """Have ten turns run at once, on two workers.

    While one look at all of them lasts, two workers that take one turn each show four at most.
    """
    shown = {"WorkerTurns": str(TURNS), "WorkerConcurrency": str(WORKERS)}
    await changed(subject, **shown, WorkerTimeout="120", TurnTimeout="45")
    # So long that the first one runs still when the last one is sent to a busy machine.
    ids = [await subject.begin("steps", count=2 * TURNS, gap_s=1) for _ in range(TURNS)]

    async def share() -> bool:
        states = [state(await subject.task(task_id)) for task_id in ids]
        return states.count("WORKING") > 2 * WORKERS

    what = f"a moment at which more than {2 * WORKERS} of ten turns ran"
    await subject.until(what, share, within_s=100)
    processes = await _processes(subject, ids)
    require(len(processes) <= WORKERS, f"ten turns ran in {len(processes)} processes")
    await _anywhere(subject)
    await turns.refused(subject)


async def outside(subject: Subject) -> None:
    """Send a turn that waits for its worker, start that on this machine, and have it run all."""
    await changed(subject, Worker="external")
    waiting = await subject.begin("say")
    variables = await subject.ground.variables(subject)
    require(state(await subject.task(waiting)) == "SUBMITTED", "a function has taken the turn")
    await _worker(subject, variables)
    await subject.completed(waiting, within_s=100)
    ids = [await subject.begin("steps", count=3, gap_s=1) for _ in range(OUTSIDE)]
    processes = await _processes(subject, ids)
    require(len(processes) == 1, f"one worker's turns ran in {len(processes)} processes")
    await _anywhere(subject)


async def both(subject: Subject) -> None:
    """Move a client from its key to tokens and back, over an Auth that takes both."""
    await move(subject, _anywhere)


async def _anywhere(subject: Subject) -> None:
    """Check what a stack does in each form."""
    await operations.operations("HTTP+JSON", "1.0").run(subject)
    await streams.python(subject)
    await turns.canceled(subject)
    await webhooks.notified(subject)


async def _processes(subject: Subject, ids: Sequence[str]) -> set[str]:
    """Wait for the tasks' ends; return the processes that have completed them."""
    return {status_text(await subject.completed(task_id, within_s=200)) for task_id in ids}


async def _worker(subject: Subject, variables: Mapping[str, str]) -> None:
    """Start a worker on this machine."""
    log = subject.made.ledger.with_name("worker.log")
    program = Path(sys.executable).with_name("a2a-serverless")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program,
            *("worker", "--concurrency", "8", "--agent", f"{agent.__file__}:agent"),
            cwd=log.parent,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            process.kill()
            await process.wait()

    subject.made.note("process of a worker", str(process.pid), end)

    async def works() -> bool:
        said = await asyncio.to_thread(log.read_text)
        require(process.returncode is None, f"the worker did not start: {said[-300:]}")
        return "works on" in said

    await subject.until("the worker", works, within_s=120)


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


CHECKS: Final = (
    Check("shared-turns", "ten tasks share two workers", shared),
    Check("external-workers", "a worker of this machine runs what no function takes", outside),
    Check("key-and-token", "a client keeps its tasks from its key to tokens, and back", both),
)
