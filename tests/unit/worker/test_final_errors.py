"""The errors of the SDK that end a task at once, and those that are tried again."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import a2a
import pytest
from a2a.client.errors import A2AClientError, A2AClientTimeoutError, AgentCardResolutionError
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.utils import errors
from a2a.utils.errors import A2AError

from a2a_serverless.worker.failures import is_final
from tests.support.workers import Agent, Bench, S, complete

DECIDED: dict[type[A2AError], bool] = {
    # The request asks for what this agent does not do, and will not do next time.
    errors.ContentTypeNotSupportedError: True,
    errors.ExtendedAgentCardNotConfiguredError: True,
    errors.ExtensionSupportRequiredError: True,
    errors.InvalidParamsError: True,
    errors.InvalidRequestError: True,
    errors.MethodNotFoundError: True,
    errors.PushNotificationNotSupportedError: True,
    errors.UnsupportedOperationError: True,
    errors.VersionNotSupportedError: True,
    # Another agent did not answer, answered with a fault, or has lost its task.
    A2AError: False,
    A2AClientError: False,
    A2AClientTimeoutError: False,
    AgentCardResolutionError: False,
    errors.InternalError: False,
    errors.InvalidAgentResponseError: False,
    errors.JSONParseError: False,
    errors.TaskNotCancelableError: False,
    errors.TaskNotFoundError: False,
}


def classes_of(base: type[A2AError]) -> Iterator[type[A2AError]]:
    yield base
    for derived in base.__subclasses__():
        yield from classes_of(derived)


def test_each_error_of_the_sdk_is_decided() -> None:
    """A release of the SDK with another error is noticed here: is a further attempt of use?"""
    for module in pkgutil.walk_packages(a2a.__path__, "a2a.", onerror=lambda _: None):
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue  # needs an extra of the SDK that is not installed
    ours = {cls for cls in classes_of(A2AError) if cls.__module__.startswith("a2a.")}
    assert ours == set(DECIDED)


@pytest.mark.parametrize("error", DECIDED, ids=lambda cls: cls.__name__)
def test_an_error_of_the_sdk_is_final_or_passing(error: type[A2AError]) -> None:
    """Final is what refuses the request itself; subclasses and groups are as their errors."""
    raised = error("no")
    assert is_final(raised) is DECIDED[error]
    assert is_final(type("Own", (error,), {})("no")) is DECIDED[error]
    assert (
        is_final(ExceptionGroup("as a TaskGroup raises it", [ValueError(), raised]))
        is (DECIDED[error])
    )


@pytest.mark.parametrize("error", [cls for cls, final in DECIDED.items() if not final])
async def test_an_agent_that_calls_another_one_is_tried_again(error: type[A2AError]) -> None:
    """A fault of the other agent, or of the way to it, costs an attempt and not the task."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if len(agent.started) == 1:
            raise error("no answer")
        await complete(context, queue)

    agent = Agent(execute)
    bench = Bench(agent, retry_base_s=0)
    task = await bench.send()
    assert await bench.work() is False
    assert await bench.work() is True
    assert (await bench.task(task)).status.state == S.TASK_STATE_COMPLETED
