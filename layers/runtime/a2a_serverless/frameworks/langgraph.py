"""A LangGraph graph as an agent: `agent = LangGraphWorker(graph)`.

The conversation is a thread of the graph. `interrupt()` pauses the task with its value as the
question (input-required), and the answer resumes it. Tokens go out as chunks of one artifact.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import defaultdict
from typing import Any, Final, TypeGuard

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.conversation import (
    INVALID,
    TOO_MANY_STEPS,
    Answer,
    Conversation,
    final_errors,
)
from a2a_serverless.worker import FinalError, TaskContext, Worker

__all__ = ["LangGraphWorker"]

_MESSAGES: Final = "messages"
_BASE64: Final = 4 / 3
_FINAL: Final[dict[type[Exception], str]] = {
    GraphRecursionError: TOO_MANY_STEPS,
    InvalidUpdateError: INVALID,
    EmptyInputError: INVALID,
}

Graph = CompiledStateGraph[Any, Any, Any, Any]


class LangGraphWorker(Worker):
    """Runs a graph, one thread for each conversation. It needs no checkpointer of its own.

    Override `begin` and `finish` for a graph whose state has no `messages`.

    Args:
        graph: compiled; a checkpointer that it was compiled with is not used.
        serde: writes and reads the state; by default LangGraph's, which warns of classes that are
            not its own. `JsonPlusSerializer(allowed_msgpack_modules=[Order])` allows some.

    Raises:
        ConfigurationError: the graph is not compiled, or has a DeltaChannel, whose value is spread
            over checkpoints.
    """

    keeps_conversation = True

    def __init__(self, graph: Graph, *, serde: SerializerProtocol | None = None) -> None:
        given: Any = graph
        if isinstance(given, StateGraph):
            raise ConfigurationError("The graph is not compiled: pass `graph.compile()`.")
        spread = [name for name, kind in graph.channels.items() if isinstance(kind, DeltaChannel)]
        if spread:
            raise ConfigurationError(
                f"The graph's {', '.join(spread)} is a DeltaChannel, whose value is spread over"
                " checkpoints, and the last one alone is kept: use another channel."
            )
        self._graph = graph
        self._serde = serde

    def begin(self, ctx: TaskContext) -> Any:
        """Return the graph's input for a task's first message: by default a human's message."""
        return {_MESSAGES: [HumanMessage(ctx.user_text)]}

    async def finish(self, ctx: TaskContext, values: Any) -> None:  # noqa: ARG002 - for overriding
        """End a task whose graph has ended, given its state; by default without further output."""
        await ctx.respond()

    async def handle(self, ctx: TaskContext) -> None:
        """Run the graph until it ends or asks, and keep its thread with the turn's ending."""
        conversation = await Conversation.load(ctx, "langgraph", growth=_BASE64)
        thread = _Thread(ctx.context_id, self._serde)
        thread.restore(conversation.waiting or conversation.ended)
        graph = self._graph.copy({"checkpointer": thread.saver})
        if conversation.waiting is None:
            given = self.begin(ctx)
        else:
            given = await _answered(graph, thread.config, conversation.answer)
        with final_errors(_FINAL):
            await _stream(ctx, graph, given, thread.config)
        state = await graph.aget_state(thread.config)
        if state.interrupts:
            await conversation.ask(state.interrupts[0].value, thread.dump())
        elif state.next:
            stopped = ", ".join(state.next)
            raise FinalError(
                f"The graph stopped before {stopped}: use interrupt() to ask.", client_text=INVALID
            )
        else:
            if conversation.waiting is not None and conversation.ended is not None:
                thread.join(conversation.ended)
            await conversation.end(thread.dump(has_ended=True))
            await self.finish(ctx, state.values)


class _Thread:
    """The checkpoints of one conversation during one turn.

    They are kept in memory. At the end of the turn, what is needed to go on is dumped: the last
    checkpoint of the graph and, while it waits, of its subgraphs.
    """

    def __init__(self, context_id: str, serde: SerializerProtocol | None = None) -> None:
        self.saver = InMemorySaver(serde=serde)
        self.config: RunnableConfig = {"configurable": {"thread_id": context_id}}

    def restore(self, dumped: dict[str, str] | None) -> None:
        """Begin with what `dump` has returned."""
        for kept in [] if dumped is None else self._loads(dumped):
            checkpoint, config = kept["checkpoint"], self._at(kept["namespace"])
            versions = checkpoint["channel_versions"]
            placed = self.saver.put(config, checkpoint, kept["metadata"], versions)
            writes: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
            for task_id, channel, value in kept["writes"]:
                writes[task_id].append((channel, value))
            for task_id, pairs in writes.items():
                self.saver.put_writes(placed, pairs, task_id)

    def dump(self, *, has_ended: bool = False) -> dict[str, str]:
        """Return the thread as JSON; if the graph has ended, without what is only for resuming."""
        latest: dict[str, CheckpointTuple] = {}
        for each in self.saver.list(self.config):  # of each namespace the newest first
            namespace = each.config["configurable"]["checkpoint_ns"]
            # A subgraph's run has an id behind a colon; a subgraph with its own memory has no id.
            if not (has_ended and ":" in namespace):
                latest.setdefault(namespace, each)
        kept = [
            {
                "namespace": namespace,
                "checkpoint": each.checkpoint,
                "metadata": each.metadata,
                "writes": [] if has_ended else each.pending_writes or [],
            }
            for namespace, each in latest.items()
        ]
        kind, content = self.saver.serde.dumps_typed(kept)
        return {"kind": kind, "content": b64encode(content).decode()}

    def join(self, dumped: dict[str, str]) -> None:
        """Add the messages of tasks that have ended while this one waited; its own come last.

        All other values of the graph's state stay as this task has left them.
        """
        ended = next(kept for kept in self._loads(dumped) if not kept["namespace"])
        last = self.saver.get_tuple(self.config)
        assert last is not None  # noqa: S101 - the graph has run
        values = last.checkpoint["channel_values"]
        for name, others in ended["checkpoint"]["channel_values"].items():
            own = values.get(name, ())
            if _are_messages(others) and _are_messages(own):
                values[name] = add_messages(others, own)
        self.saver.put(
            self._at(""), last.checkpoint, last.metadata, last.checkpoint["channel_versions"]
        )

    def _loads(self, dumped: dict[str, str]) -> list[dict[str, Any]]:
        content = b64decode(dumped["content"])
        loaded: list[dict[str, Any]] = self.saver.serde.loads_typed((dumped["kind"], content))
        return loaded

    def _at(self, namespace: str) -> RunnableConfig:
        return {"configurable": {**self.config["configurable"], "checkpoint_ns": namespace}}


async def _answered(graph: Graph, config: RunnableConfig, answer: Any) -> Command[Any]:
    """Return the input that goes on with an answer.

    Raises:
        FinalError: the graph is another one than that which has asked.
    """
    asked = (await graph.aget_state(config)).interrupts
    if not asked:
        raise FinalError(
            "The graph has changed since it asked, and no node waits for the answer any more: begin"
            " a new task, or give the node that has asked its name again.",
            client_text="The agent has changed since it asked: begin a new task.",
        )
    return Command(resume={asked[0].id: answer})


async def _stream(ctx: TaskContext, graph: Graph, given: Any, config: RunnableConfig) -> None:
    answer = Answer(ctx)
    async for token, _ in graph.astream(given, config, stream_mode="messages"):
        if isinstance(token, AIMessage) and token.text:
            await answer.add(token.text, token.id)


def _are_messages(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)
