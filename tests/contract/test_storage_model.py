"""DynamoDB Local compared with the model, DurableStorage, over random sequences of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from a2a.types import ListTasksResponse, TaskState, TaskStatus
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from a2a_serverless.errors import A2AServerlessError, ConcurrencyError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    StatusChanged,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import KNOWN, Head
from a2a_serverless.tasks.rules import Commit, renewing
from a2a_serverless_tools.contract import Storage
from tests.support.databases import LONG, Database, new_clock, new_scope
from tests.support.memory import memory_storage
from tests.support.messages import agent_message, artifact, chunk, message, request

EXAMPLES = 1000 if LONG else 20
STEPS = 30

TASKS = st.sampled_from(["t-1", "t-2", "t-3"])
CONTEXTS = st.sampled_from(["c-1", "c-2"])
STATES = st.sampled_from(sorted(KNOWN))
TOKENS = st.sampled_from(["one", "two"])
TEXTS = st.sampled_from(["a", "b", "long " * 1000])
ENTRIES = st.one_of(
    st.builds(lambda text: ArtifactWritten(artifact("a", text), append=True), TEXTS),
    st.builds(lambda text: MessageAppended(agent_message(text)), TEXTS),
    st.builds(
        lambda state, text: StatusChanged(
            TaskStatus(state=state, message=agent_message(text)), archive=True
        ),
        STATES,
        TEXTS,
    ),
    st.builds(lambda text: TurnOpened(request(text)), TEXTS),
)

Pair = tuple[Head, Head]
Call = Callable[[DurableStorage], Awaitable[Any]]


class Comparison(RuleBasedStateMachine):
    """Every call goes to the model and to DynamoDB; both must say the same.

    Ids are chosen and time is shared, so that answers agree to the last timestamp. Incarnations
    alone are random.
    """

    heads: Bundle[Pair] = Bundle("heads")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = new_clock()
        scope = new_scope()
        self.model = memory_storage(scope=scope, clock=self.clock)
        self.real = database.storage(scope=scope, clock=self.clock)

    def teardown(self) -> None:
        try:
            for task_id in ("t-1", "t-2", "t-3"):
                self.load(task_id, None, artifacts=True)
        finally:
            self.loop.close()

    def both(self, on_model: Awaitable[Any], on_real: Awaitable[Any]) -> tuple[Any, Any]:
        """The outcomes of two calls, which must be alike; errors count by type and version."""
        expected, actual = self.outcome(on_model), self.outcome(on_real)
        assert plain(actual) == plain(expected)
        return expected, actual

    def same(self, call: Call) -> tuple[Any, Any]:
        """Make one call on both."""
        return self.both(call(self.model), call(self.real))

    def outcome(self, call: Awaitable[Any]) -> Any:
        async def settle() -> Any:
            try:
                return await call
            except A2AServerlessError as error:
                return error

        return self.loop.run_until_complete(settle())

    @initialize(target=heads)
    def begin(self) -> Any:
        return multiple(
            self.open("t-1", "c-1", "a", None),
            self.open("t-2", "c-1", "b", None),
            self.open("t-3", "c-2", "b", 60),
        )

    @rule(
        target=heads,
        task_id=TASKS,
        context_id=CONTEXTS,
        text=TEXTS,
        ttl_s=st.sampled_from([None, 60, 0.5]),
    )
    def open(self, task_id: str, context_id: str, text: str, ttl_s: float | None) -> Any:
        sent = request(text)
        opened = self.same(
            lambda storage: storage.open_task(context_id, sent, task_id=task_id, ttl_s=ttl_s)
        )
        return tuple(one.head for one in opened)

    @rule(context_id=CONTEXTS, key=st.sampled_from(["k-1", "k-2"]), text=TEXTS)
    def create(self, context_id: str, key: str, text: str) -> None:
        sent = message(text)
        self.same(
            lambda storage: Storage(storage).create_task(context_id, sent, idempotency_key=key)
        )

    @rule(
        task_id=TASKS,
        state=st.none() | STATES,
        text=TEXTS,
        expected=st.none() | st.integers(1, 4),
        metadata=st.none() | st.dictionaries(st.sampled_from("kl"), TEXTS | st.none()),
    )
    def update(
        self,
        task_id: str,
        state: TaskState | None,
        text: str,
        expected: int | None,
        metadata: dict[str, Any] | None,
    ) -> None:
        self.same(
            lambda storage: Storage(storage).update_task(
                task_id,
                state,
                status_message=agent_message_of(text),
                artifacts=[chunk("a", text)],
                task_metadata=metadata,
                expected_version=expected,
            )
        )

    @rule(
        target=heads,
        pair=heads,
        entries=st.lists(ENTRIES, max_size=2),
        token=st.none() | TOKENS,
        claims=st.booleans(),
        ends_turn=st.booleans(),
        state=st.none() | st.integers(0, 3),
    )
    def commit(
        self,
        pair: Pair,
        entries: list[Entry],
        token: str | None,
        state: int | None,
        *,
        claims: bool,
        ends_turn: bool,
    ) -> Any:
        made = Commit(
            entries=tuple(entries),
            token=token,
            claims=claims and token is not None,
            ends_turn=ends_turn,
            context_write=None if state is None else context_write({"n": state}, state),
        )
        after = self.both(self.model.commit(pair[0], made), self.real.commit(pair[1], made))
        return multiple() if isinstance(after[0], Exception) else after

    @rule(pair=heads, later=st.integers(1, 10**6), sends=st.integers(0, 2))
    def postpone(self, pair: Pair, later: int, sends: int) -> None:
        due_at = self.clock.now_ms() + later
        self.both(
            self.model.postpone(pair[0], due_at=due_at, sends=sends),
            self.real.postpone(pair[1], due_at=due_at, sends=sends),
        )

    @rule(pair=heads, token=TOKENS, later=st.integers(1, 10**6))
    def renew(self, pair: Pair, token: str, later: int) -> None:
        due_at = self.clock.now_ms() + later
        self.both(
            self.model.change(pair[0], partial(renewing, token=token, due_at=due_at)),
            self.real.change(pair[1], partial(renewing, token=token, due_at=due_at)),
        )

    @rule(pair=heads, after=st.integers(0, 4))
    def read(self, pair: Pair, after: int) -> None:
        task_id = pair[0].task_id
        self.both(
            self.model.read(task_id, after=after, incarnation=pair[0].incarnation),
            self.real.read(task_id, after=after, incarnation=pair[1].incarnation),
        )

    @rule(task_id=TASKS, length=st.sampled_from([None, 0, 1, 2, -1]), artifacts=st.booleans())
    def load(self, task_id: str, length: int | None, *, artifacts: bool) -> None:
        self.same(lambda storage: storage.load_task(task_id, length, include_artifacts=artifacts))
        self.same(lambda storage: Storage(storage).get_version(task_id))

    @rule(task_id=TASKS, context_id=CONTEXTS, whole=st.integers(0, 5))
    def delete(self, task_id: str, context_id: str, whole: int) -> None:
        if whole == 0:
            self.same(lambda storage: delete_context(storage, context_id))
        if whole == 1:
            self.same(lambda storage: delete_task(storage, task_id))

    @rule(context_id=CONTEXTS, value=st.none() | st.integers() | TEXTS)
    def update_context(self, context_id: str, value: object) -> None:
        self.same(lambda storage: Storage(storage).update_context(context_id, value))
        self.same(lambda storage: storage.contexts.load(context_id))

    @rule(
        context_id=st.none() | CONTEXTS,
        status=st.none() | STATES,
        size=st.integers(1, 4),
        length=st.sampled_from([None, 0, 1]),
    )
    def list_pages(
        self, context_id: str | None, status: TaskState | None, size: int, length: int | None
    ) -> None:
        query = ListTasksQuery(
            context_id=context_id, status=status, page_size=size, history_length=length
        )
        for _ in range(3):
            page, _actual = self.same(lambda storage: list_tasks(storage, query))  # noqa: B023 - called at once
            if not page.next_page_token:
                return
            query = query.model_copy(update={"page_token": page.next_page_token})

    @rule()
    def due(self) -> None:
        async def own(storage: DurableStorage) -> Any:
            found = await due_tasks(storage, self.clock.now_ms(), limit=10_000)
            alive = [one for one in found if one.scope == storage.scope]
            # The due index has keys alone: an expired task stays in it until it is removed.
            return [one for one in alive if await storage.head(one.task_id)]

        self.same(own)

    @rule(seconds=st.sampled_from([0, 0, 0.001, 1, 30, 3600]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)


def agent_message_of(text: str) -> Any:
    """A message that is the same whenever it is made."""
    fixed = agent_message(text)
    fixed.message_id = "m"
    return fixed


def plain(outcome: Any) -> Any:
    """An outcome without what is random in it."""
    match outcome:
        case Head():
            return replace(outcome, incarnation="")
        case Log(head=head, records=records):
            return plain(head), [replace(record, commit_id="") for record in records]
        case ConcurrencyError():
            return type(outcome), outcome.current_version
        case Exception():
            return type(outcome)
        case ListTasksResponse():  # a token has the total; the page behind it shows its place
            return [*outcome.tasks], outcome.total_size, bool(outcome.next_page_token)
        case _ if hasattr(outcome, "created"):
            return plain(outcome.head), outcome.created
        case _:
            return outcome


@pytest.mark.emulators
@pytest.mark.timeout(3600 if LONG else 600)
def test_dynamodb_does_what_the_model_does(database: Database) -> None:
    """DynamoDB and the model give the same answers and errors for any sequence of calls."""
    run_state_machine_as_test(
        cast("type[RuleBasedStateMachine]", lambda: Comparison(database)),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
