"""The forms of a stack: it is updated to each, checked there, and updated back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.operate.prices import GB_SECOND, MILLION
from tests.live import agent, callers
from tests.live.account import Account
from tests.live.checks import CHECKS
from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.runner import Findings, Say, run
from tests.live.stack import Stack, read_stack
from tests.live.subject import Subject, state, status_text
from tests.support.issuers import AUDIENCE, Issuer

UPDATED_S: Final = 1800.0
UPDATE_S: Final = 150
"""How long an update takes, roughly."""
STARTED_S: Final = 120.0
TURNS: Final = 10
WORKERS: Final = 2
OUTSIDE: Final = 6
AT_ONCE: Final = 10
"""How many workers, and environments beside them, the checks occupy at most."""
MEMORY: Final = (1024, 512)
"""What a worker has in MB where the stack does not say, and what the other functions have."""
TASK: Final = 700 / MILLION
"""A streamed task, by the page `cost`."""
NO_TOKENS: Final = {"OidcIssuer": "", "OidcAudience": ""}

Run = Callable[[Subject], Awaitable[Figures]]


class Ground(Protocol):
    """What updates the stack under check, and where its workers outside of it run."""

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        """Update the stack to these values of parameters if it has others, and read it again."""

    async def variables(self, subject: Subject) -> Mapping[str, str]:
        """Return the environment of a worker on this machine."""

    async def issuer(self, subject: Subject) -> Issuer:
        """Open the issuer of the tokens of one form."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Values of parameters, and the checks of a stack that has them; `own` is one of those.

    `take` updates the stack to them, and returns what the check of the form's own name runs.
    """

    name: str
    proves: str
    parameters: Mapping[str, str]
    checks: tuple[str, ...]
    take: Callable[[Form, Subject, Ground], Awaitable[Run]]
    seconds: int

    def own(self, does: Run) -> Check:
        """Return the check of the form's own name."""
        return Check(self.name, self.proves, does, seconds=self.seconds)

    def chosen(self, own: Run, every: Collection[Check] = CHECKS) -> list[Check]:
        """Return the form's checks in their order."""
        by_name = {check.name: check for check in every} | {self.name: self.own(own)}
        return [by_name[name] for name in self.checks]

    def on(self, subject: Subject) -> Stack:
        """Return the stack as this form has it.

        Raises:
            NotPossibleError: there is none, its owner does not allow it, or it is no default one.
        """
        _, stack = subject.changeable("it updates the stack to another form, and back")
        for name, needed in DEFAULT.items():
            if stack.parameters.get(name, needed) != needed:
                raise NotPossibleError(f"needs a stack with {name}={needed}: others begin there")
        return replace(stack, parameters={**stack.parameters, **self.parameters})


async def _update(form: Form, subject: Subject, ground: Ground) -> None:
    """Update to a form; what is undone later updates back, and has a turn end there."""
    _, stack = subject.on_aws()
    taken = {**form.parameters, **NO_TOKENS} if "Auth" in form.parameters else form.parameters
    before = {name: stack.parameters.get(name, "") for name in taken}

    had = ", ".join(f"{name}={value}" for name, value in before.items())

    async def back() -> None:
        await ground.update(subject, before)
        task = await subject.ended(await subject.begin("say"), within_s=100)
        require(state(task) == "COMPLETED", f"after {form.name} a task ended as {state(task)}")

    subject.made.note("parameters of", f"{stack.name}, which had {had}", back)
    await ground.update(subject, form.parameters)


async def _shared(form: Form, subject: Subject, ground: Ground) -> Run:
    await _update(form, subject, ground)
    return together


async def together(subject: Subject) -> Figures:
    """Have ten turns run at once, on two workers.

    While one look at all of them lasts, two workers that take one turn each show four at most.
    """
    ids = [await subject.begin("steps", count=TURNS, gap_s=1) for _ in range(TURNS)]

    async def share() -> bool | None:
        states = [state(await subject.task(task_id)) for task_id in ids]
        return states.count("WORKING") > 2 * WORKERS or None

    what = f"a moment at which more than {2 * WORKERS} of ten turns ran"
    await subject.until(what, share, within_s=100, every_s=0.5)
    processes = await _processes(subject, ids)
    require(len(processes) <= WORKERS, f"ten turns ran in {len(processes)} processes")
    return {"tasks": len(ids), "processes": len(processes)}


async def _outside(form: Form, subject: Subject, ground: Ground) -> Run:
    """Send a turn that waits for its worker, and start that on this machine."""
    await _update(form, subject, ground)
    waiting = await subject.begin("say")
    variables = await ground.variables(subject)
    require(state(await subject.task(waiting)) == "SUBMITTED", "a function has taken the turn")
    await _worker(subject, variables)
    first = await subject.ended(waiting, within_s=100, every_s=1)
    require(state(first) == "COMPLETED", f"the turn that waited ended as {state(first)}")
    return alone


async def alone(subject: Subject) -> Figures:
    """Have one worker outside of Lambda run all turns."""
    ids = [await subject.begin("steps", count=3, gap_s=1) for _ in range(OUTSIDE)]
    processes = await _processes(subject, ids)
    require(len(processes) == 1, f"one worker's turns ran in {len(processes)} processes")
    return {"tasks": len(ids) + 1, "processes": 1}


async def _processes(subject: Subject, ids: Sequence[str]) -> set[str]:
    """Wait for the tasks' ends; return the processes that have completed them."""
    tasks = [await subject.ended(task_id, within_s=200, every_s=1) for task_id in ids]
    wrong = [it["id"] for it in tasks if state(it) != "COMPLETED"]
    require(not wrong, f"tasks that did not complete: {wrong}")
    return {status_text(it) for it in tasks}


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
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    subject.made.note("process of a worker", str(process.pid), end)

    async def works() -> bool | None:
        said = await asyncio.to_thread(log.read_text)
        require(process.returncode is None, f"the worker did not start: {said[-300:]}")
        return "works on" in said or None

    await subject.until("the worker", works, within_s=STARTED_S, every_s=0.1)


async def _both(form: Form, subject: Subject, ground: Ground) -> Run:
    """Open an issuer, and update to keys beside its tokens."""
    issuer = await ground.issuer(subject)
    await callers.name_tokens(subject, issuer)
    tokens = {"OidcIssuer": issuer.url, "OidcAudience": AUDIENCE}

    async def take(auth: str) -> None:
        await ground.update(subject, {"Auth": auth, **(tokens if "oidc" in auth else NO_TOKENS)})

    await _update(replace(form, parameters={**form.parameters, **tokens}), subject, ground)
    return lambda subject: callers.move(subject, issuer, take)


DEFAULT: Final = {
    "Auth": "api-key",
    "Rollout": "all-at-once",
    "Worker": "lambda",
    "WorkerTurns": "1",
}
"""Of a stack that is none of the forms. Staged, an update would last too long."""
ANYWHERE: Final = ("operations-1.0-rest", "stream-python", "cancel", "webhook")
FORMS: Final = (
    Form(
        name="shared-turns",
        proves="ten tasks share two workers",
        parameters={
            "WorkerTurns": str(TURNS),
            "WorkerConcurrency": str(WORKERS),
            "WorkerTimeout": "120",
            "TurnTimeout": "45",
        },
        checks=("shared-turns", *ANYWHERE, "role-refused"),
        take=_shared,
        seconds=30,
    ),
    Form(
        name="external-workers",
        proves="a worker of this machine runs what no function takes",
        parameters={"Worker": "external"},
        checks=("external-workers", *ANYWHERE),
        take=_outside,
        seconds=20,
    ),
    Form(
        name="key-and-token",
        proves="a client keeps its tasks from its key over both to tokens, and back",
        parameters={"Auth": "api-key+oidc"},
        checks=("one-origin", *ANYWHERE, "operations-1.0-jsonrpc", "key-and-token"),
        take=_both,
        seconds=2 * UPDATE_S,
    ),
)


def in_form(form: Form, ground: Ground, say: Say, found: Findings) -> Check:
    """Return the check that takes a form and runs its checks there, which add to what is `found`.

    What it has made is undone after it, as that of every check: the stack is updated back.
    """

    async def run_all(subject: Subject) -> Figures:
        own = await form.take(form, subject, ground)
        checks = [replace(it, name=f"{form.name}/{it.name}") for it in form.chosen(own)]
        await run(subject, checks, say, found)
        return {"parameters": dict(form.parameters), "checks": len(checks)}

    given = ", ".join(f"{name}={value}" for name, value in form.parameters.items())
    return Check(f"form {form.name}", f"the stack takes {given}, and goes back", run_all, form.on)


def plan(subject: Subject, checks: Sequence[Check], forms: Sequence[Form]) -> list[str]:
    """Return what would run in each form, what would not and why, how long and for how much."""
    present = subject.stack
    lines, total_s = _planned(subject, "as it is", checks)
    for form in forms:
        given = ", ".join(f"{name}={value}" for name, value in form.parameters.items())
        title = f"{form.name}, updated to {given} and back"
        try:
            subject.stack = form.on(subject)
        except NotPossibleError as error:
            lines.append(f"{title}: not possible here: {error}")
            continue
        more, seconds = _planned(subject, title, form.chosen(together), 2 * UPDATE_S)
        subject.stack = present
        lines, total_s = lines + more, total_s + seconds
    return [*lines, f"all: {_price(subject, total_s)}"]


def _planned(
    subject: Subject, title: str, checks: Sequence[Check], seconds: int = 0
) -> tuple[list[str], int]:
    lines = []
    for check in checks:
        try:
            check.needs(subject)
        except NotPossibleError as error:
            lines.append(f"  {check.name:<22} not possible here: {error}")
        else:
            lines.append(f"  {check.name:<22} {check.seconds:>4} s  {check.proves}")
            seconds += check.seconds
    return [f"{title}: {_price(subject, seconds)}", *lines], seconds


def _price(subject: Subject, seconds: int) -> str:
    given = subject.stack.parameters if subject.stack else {}
    gb = (int(given.get("WorkerMemory", MEMORY[0])) + MEMORY[1]) * AT_ONCE / 1024
    dollars = seconds * (gb * GB_SECOND + TASK)
    return f"about {-(-seconds // 60)} minutes, at most ${dollars:.2f}"


class Updates:
    """Updates a stack of AWS by CloudFormation, whose template stays as it is."""

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        """Update the stack, and wait for its end.

        Raises:
            BrokenError: it went back; the text has what CloudFormation says.
        """
        account, stack = subject.on_aws()
        call, named = account.call, {"StackName": stack.name}

        async def at_rest() -> str | None:
            answer = await call("cloudformation", "describe_stacks", **named)
            status = str(answer["Stacks"][0]["StackStatus"])
            return None if status.endswith("_IN_PROGRESS") else status

        # An update that was interrupted goes on: what it has changed is known at its end alone.
        await subject.until("the update before", at_rest, within_s=UPDATED_S, every_s=5)
        subject.stack = stack = await read_stack(account, stack.name)
        if is_so(stack, parameters):
            return
        given = [
            {"ParameterKey": name, "ParameterValue": parameters[name]}
            if name in parameters
            else {"ParameterKey": name, "UsePreviousValue": True}
            for name in stack.parameters
        ]
        token = f"{subject.run}-{uuid.uuid4().hex}"
        await call(
            "cloudformation",
            "update_stack",
            ClientRequestToken=token,
            UsePreviousTemplate=True,
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
            Parameters=given,
            **named,
        )
        status = await subject.until("the update", at_rest, within_s=UPDATED_S, every_s=5)
        if status != "UPDATE_COMPLETE":
            reasons = "; ".join((await _failures(account, stack.name, token))[:3])
            require(not status, f"the update ended as {status}: {reasons}")
        subject.stack = await read_stack(account, stack.name)

    async def variables(self, subject: Subject) -> Mapping[str, str]:
        """Return the stack's addresses; the credentials are those of this process."""
        _, stack = subject.on_aws()
        return {**addresses(stack), "AWS_REGION": stack.region, "AWS_DEFAULT_REGION": stack.region}

    async def issuer(self, subject: Subject) -> Issuer:
        """Make a function with a URL, or open one here if the agent runs here."""
        return await opened(subject, callers.issuer_for(subject))


async def _failures(account: Account, name: str, token: str) -> list[str]:
    """Return what failed in one update of a stack, and why, the first failure first."""
    failed: list[str] = []
    page: dict[str, str] = {}
    while True:
        answer = await account.call(
            "cloudformation", "describe_stack_events", StackName=name, **page
        )
        own = [it for it in answer["StackEvents"] if it.get("ClientRequestToken") == token]
        failed += [
            f"{it['LogicalResourceId']}: {it.get('ResourceStatusReason')}"
            for it in own
            if it["ResourceStatus"].endswith("_FAILED")
        ]
        if not own or "NextToken" not in answer:  # the newest come first: earlier updates follow
            return failed[::-1]
        page = {"NextToken": answer["NextToken"]}


async def opened(subject: Subject, issuer: AbstractAsyncContextManager[Issuer]) -> Issuer:
    """Open an issuer until the form ends."""
    things = AsyncExitStack()
    subject.made.note("issuer of", subject.run, things.aclose)
    return await things.enter_async_context(issuer)


def is_so(stack: Stack, parameters: Mapping[str, str]) -> bool:
    """Return True if a stack has these values of parameters."""
    return all(stack.parameters.get(name, "") == value for name, value in parameters.items())


def addresses(stack: Stack) -> dict[str, str]:
    """Return the settings of a worker outside of Lambda that a stack's outputs say."""
    named = {"TABLE": "Table", "QUEUE": "Queue", "UNDECODABLE_QUEUE": "UndecodableQueue"}
    return {f"A2A_{name}": stack.outputs[output] for name, output in named.items()}


def chosen(names: Collection[str]) -> tuple[list[Check], list[Form]]:
    """Return the checks and forms of these names, or all.

    Raises:
        ConfigurationError: there is none of a name.
    """
    known = {check.name for check in CHECKS} | {form.name for form in FORMS}
    if unknown := set(names) - known:
        raise ConfigurationError(f"There is no check {min(unknown)}: see --list.")
    checks = [check for check in CHECKS if not names or check.name in names]
    return checks, [form for form in FORMS if not names or form.name in names]
