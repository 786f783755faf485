"""What API Gateway does by itself: headers, paths, and its own answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import httpx

from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.streams import arrivals, judged
from tests.live.subject import VERSION, Subject

BURST: Final = 600
BUSY_S: Final = 60.0


async def renamed(subject: Subject) -> Figures:
    """Ask without a credential: the challenge has another name behind API Gateway."""
    _, stack = subject.behind_gateway()
    if stack.parameters.get("Auth") == "none":
        raise NotPossibleError("the stack lets in everybody (Auth none)")
    response = await subject.anonymous.get("/tasks", headers=VERSION)
    require(response.status_code == 401, f"a stranger was answered {response.status_code}")
    named = [name for name in response.headers if name.endswith("www-authenticate")]
    require(named == ["x-amzn-remapped-www-authenticate"], f"the challenge comes as {named}")
    return {}


async def encoded(subject: Subject) -> Figures:
    """Use `%3A` in the path in place of the colon: to stream, and to cancel."""
    figures = judged(subject, [each async for each in arrivals(subject, "/message%3Astream")])
    task_id = await subject.begin("wait")
    await subject.reached(task_id, "WORKING")
    response = await subject.http.post(f"/tasks/{task_id}%3Acancel", headers=VERSION)
    require(
        response.is_success and response.json()["status"]["state"] == "TASK_STATE_CANCELED",
        f"a cancel by %3A was answered with {response.status_code}",
        **figures,
    )
    return figures


async def throttled(subject: Subject) -> Figures:
    """Ask more often at once than one method takes."""
    subject.behind_gateway()
    _, stack = subject.changeable()
    burst = max(BURST, 3 * int(stack.parameters["ThrottleRate"]))
    answers = await asyncio.gather(*(subject.anonymous.get("/healthz") for _ in range(burst)))
    counts = Counter(str(answer.status_code) for answer in answers)
    refused = [answer for answer in answers if answer.status_code == 429]
    require(refused, f"none of {burst} requests at once was answered with 429", answers=counts)
    return {"answers": counts, **_refusal(refused[0])}


async def busy(subject: Subject) -> Figures:
    """Take ApiFunction all its concurrency for a moment."""
    subject.behind_gateway()
    account, stack = subject.changeable()
    named = {"FunctionName": stack.resources["ApiFunction"]}
    found = await account.call("lambda", "get_function_concurrency", **named)
    if "ReservedConcurrentExecutions" in found:
        raise NotPossibleError("needs an ApiFunction without reserved concurrency")

    async def undo() -> None:
        await account.call("lambda", "delete_function_concurrency", **named)

    subject.made.note("reserved concurrency 0 of", named["FunctionName"], undo)
    await account.call(
        "lambda", "put_function_concurrency", ReservedConcurrentExecutions=0, **named
    )

    async def look() -> httpx.Response | None:
        response = await subject.anonymous.get("/healthz")
        return None if response.is_success else response

    refusal = _refusal(await subject.until("a refusal", look, within_s=BUSY_S))
    await undo()
    healthy = f"{subject.base}/healthz"
    await subject.until("an answer after it", lambda: subject.answers(healthy), within_s=BUSY_S)
    return refusal


def _refusal(answer: httpx.Response) -> Figures:
    """Require of a refusal what the template's GatewayResponses promise; return it."""
    status, body = answer.status_code, answer.text[:500]
    shown: Figures = {"status": status, "headers": dict(answer.headers), "body": body}
    require(status in {429, 503}, f"the answer is {status}", **shown)
    require(answer.headers.get("retry-after"), "the answer has no Retry-After", **shown)
    try:
        code = answer.json()["error"]["code"]
    except (ValueError, LookupError, TypeError):
        code = None
    require(code == status, "the answer's body is not in the form of the application's", **shown)
    return shown


CHECKS: Final = (
    Check(
        "renamed-header", "WWW-Authenticate arrives as x-amzn-remapped-www-authenticate", renamed
    ),
    Check("encoded-colon", "%3A in a path is a colon: it streams and it cancels", encoded),
    Check("throttled", "more requests than a method takes are answered with 429", throttled),
    Check("busy", "a function that cannot start is answered with 503 or 429", busy),
)
