"""What API Gateway does by itself: headers, paths, and its own answers."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from tests.live.account import Account
from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.stack import Stack
from tests.live.streams import arrivals, judged
from tests.live.subject import VERSION, Subject

BURST: Final = 600
LONGEST_BURST: Final = 2000
BUSY_S: Final = 60.0


def _closed(subject: Subject) -> None:
    _, stack = subject.behind_gateway()
    if stack.parameters.get("Auth") == "none":
        raise NotPossibleError("the stack lets in everybody (Auth none)")


async def renamed(subject: Subject) -> Figures:
    """Ask without a credential: the challenge has another name behind API Gateway."""
    response = await subject.anonymous.get("/tasks", headers=VERSION)
    require(response.status_code == 401, f"a stranger was answered {response.status_code}")
    named = {
        name: value for name, value in response.headers.items() if name.endswith("www-authenticate")
    }
    require(
        list(named) == ["x-amzn-remapped-www-authenticate"],
        f"the challenge comes as {sorted(named)}, not as x-amzn-remapped-www-authenticate",
    )
    return {"headers": named}


async def encoded(subject: Subject) -> Figures:
    """Use `%3A` in the path in place of the colon: to stream, and to cancel."""
    figures = judged([arrival async for arrival in arrivals(subject, "/message%3Astream")])
    task_id = await subject.begin("wait")
    await subject.working(task_id)
    response = await subject.http.post(f"/tasks/{task_id}%3Acancel", headers=VERSION)
    require(
        response.is_success and response.json()["status"]["state"] == "TASK_STATE_CANCELED",
        f"a cancel by %3A was answered with {response.status_code}",
        **figures,
    )
    return figures


def _burst(subject: Subject) -> int:
    """Return how many requests are more than one method takes.

    Raises:
        NotPossibleError: there is no consent to them, or they are too many.
    """
    _, stack = subject.behind_gateway()
    if not subject.consent.burst:
        raise NotPossibleError(f"needs --burst: at least {BURST} requests at once")
    burst = max(BURST, 3 * int(stack.parameters["ThrottleRate"]))
    if burst > LONGEST_BURST:
        raise NotPossibleError(f"ThrottleRate of the stack is so high that it needs {burst}")
    return burst


async def throttled(subject: Subject) -> Figures:
    """Ask more often at once than one method takes."""
    burst = _burst(subject)
    answers = await asyncio.gather(*(subject.anonymous.get("/healthz") for _ in range(burst)))
    refused = [answer for answer in answers if answer.status_code == 429]
    counts = _counts(answers)
    require(refused, f"none of {burst} requests at once was answered with 429", answers=counts)
    _shaped(refused[0], 429)
    return {"answers": counts, **_shown(refused[0])}


def _stoppable(subject: Subject) -> tuple[Account, Stack]:
    subject.behind_gateway()
    return subject.changeable("ApiFunction answers no one for a moment")


async def busy(subject: Subject) -> Figures:
    """Take ApiFunction all its concurrency for a moment."""
    account, stack = _stoppable(subject)
    function = stack.resources["ApiFunction"]
    found = await account.call("lambda", "get_function_concurrency", FunctionName=function)
    before = found.get("ReservedConcurrentExecutions")

    async def undo() -> None:
        if before is None:
            await account.call("lambda", "delete_function_concurrency", FunctionName=function)
        else:
            await account.call(
                "lambda",
                "put_function_concurrency",
                FunctionName=function,
                ReservedConcurrentExecutions=before,
            )

    had = f"{function}, which had {'none' if before is None else before}"
    subject.made.note("reserved concurrency 0 of", had, undo)
    await account.call(
        "lambda",
        "put_function_concurrency",
        FunctionName=function,
        ReservedConcurrentExecutions=0,
    )

    async def look() -> httpx.Response | None:
        response = await subject.anonymous.get("/healthz")
        return None if response.is_success else response

    answer = await subject.until("a refusal", look, within_s=BUSY_S, every_s=0.5)
    await undo()
    await subject.until(
        "an answer after it",
        lambda: subject.answers(f"{subject.base}/healthz"),
        within_s=BUSY_S,
        every_s=1,
    )
    _shaped(answer, 429 if answer.status_code == 429 else 503)
    return _shown(answer)


def _shaped(answer: httpx.Response, status: int) -> None:
    """Require what the template's GatewayResponses promise."""
    shown = _shown(answer)
    require(answer.status_code == status, f"the answer is {answer.status_code}", **shown)
    require(answer.headers.get("retry-after"), "the answer has no Retry-After", **shown)
    try:
        code = answer.json()["error"]["code"]
    except (ValueError, LookupError, TypeError):
        code = None
    require(code == status, "the answer's body is not in the form of the application's", **shown)


def _shown(answer: httpx.Response) -> Figures:
    return {
        "status": answer.status_code,
        "headers": dict(answer.headers),
        "body": answer.text[:500],
    }


def _counts(answers: list[httpx.Response]) -> dict[str, int]:
    codes = [str(answer.status_code) for answer in answers]
    return {code: codes.count(code) for code in sorted(set(codes))}


CHECKS = (
    Check(
        "renamed-header",
        "WWW-Authenticate arrives as x-amzn-remapped-www-authenticate",
        renamed,
        _closed,
    ),
    Check("encoded-colon", "%3A in a path is a colon: it streams and it cancels", encoded),
    Check(
        "throttled", "more requests than a method takes are answered with 429", throttled, _burst
    ),
    Check("busy", "a function that cannot start is answered with 503 or 429", busy, _stoppable),
)
