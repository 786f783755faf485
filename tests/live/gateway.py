"""What API Gateway does by itself to headers and paths."""

from __future__ import annotations

from typing import Final

from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.streams import arrivals, judged
from tests.live.subject import VERSION, Subject


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


CHECKS: Final = (
    Check(
        "renamed-header", "WWW-Authenticate arrives as x-amzn-remapped-www-authenticate", renamed
    ),
    Check("encoded-colon", "%3A in a path is a colon: it streams and it cancels", encoded),
)
