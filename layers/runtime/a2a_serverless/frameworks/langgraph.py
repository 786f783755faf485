"""A LangGraph graph as an agent: `agent = LangGraphWorker(graph)`.

The conversation is a thread of the graph. `interrupt()` pauses the task with its value as the
question (input-required), and the answer resumes it. Tokens go out as chunks of one artifact. Each
run of a node is a step, whose record has the node's writes.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, Final, TypeGuard
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
)
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import CachePolicy, Command
from xxhash import xxh3_128_hexdigest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import (
    CHANGED,
    INVALID,
    TOO_MANY_STEPS,
    FrameworkWorker,
    check_end,
)
from a2a_serverless.frameworks.conversation import Answer, Conversation
from a2a_serverless.frameworks.langgraph_interrupts import Callers, Saver, namespace_of, without_ids
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import File, Takes, give
from a2a_serverless.frameworks.steps import (
    NotRecordedError,
    Steps,
    count_tokens,
    jsonable,
    show_tool,
    text_of,
    to_show,
)
from a2a_serverless.tasks.identity import digest, unicode_of
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.steps import outside

__all__ = ["LangGraphWorker"]

_MESSAGES: Final = "messages"
_TASKS: Final = "tasks"
_CODE: Final = "code"
"""The mode of what the code of a node tells by itself, in no stream of LangGraph."""
_CUSTOM: Final = "custom"
_UPDATES: Final = "updates"
_BASE64: Final = 4 / 3

Graph = Pregel[Any, Any, Any, Any]
"""Compiled, or an entrypoint."""
_Show = Callable[[TaskContext, str, Any], Awaitable[None]]


class LangGraphWorker(FrameworkWorker):
    """Runs a graph, one thread for each conversation. It needs no checkpointer of its own.

    Override `begin` and `finish` for a graph whose state has no `messages`.

    >>> agent = LangGraphWorker(builder.compile(), answer="plan", show_tools=True)

    Args:
        graph: compiled; a checkpointer that it was compiled with is not used.
        answer: the key of the state that has the answer, if that is not what models say. It is
            sent when the graph has ended, and no text is streamed but that of `nodes`.
        nodes: the nodes whose text is the answer, one or several; by default all of them.
        stream_mode: what is shown as statuses beside the text: "custom", what nodes write, and
            "updates", what they return; a string or several.
        subgraphs: True: what subgraphs say is the answer, too.
        show_tools: True: the client sees each call of a tool as a status.
        **options: those of the graph's `astream`, such as `config` and `context`; one that is a
            function is called with the turn's TaskContext.
        serde: writes and reads the state; by default LangGraph's, which warns of classes that are
            not its own. `JsonPlusSerializer(allowed_msgpack_modules=[Order])` allows some.
        steps: False: nothing is recorded, and a turn that is interrupted starts over.
        stream: False: a message of a model is sent when its node has ended, as one chunk.
        urls: True: files by https URLs are taken too, and the URL is handed to the model as it is.
            Some providers' packages fetch it in the worker: the default refuses URLs.

    Raises:
        ConfigurationError: the graph is not compiled, or has a DeltaChannel, whose value is spread
            over checkpoints. Or an option, a node, a key or a mode does not exist, or LangGraph's
            version is unknown.
    """

    module = "langgraph"
    passed = Passed(
        "LangGraphWorker",
        {
            CompiledStateGraph.astream: frozenset(
                {"input", "interrupt_before", "interrupt_after", "version"}
            )
        },
    )
    takes = Takes("langgraph", None)
    _final: ClassVar[dict[type[Exception], str]] = {
        GraphRecursionError: TOO_MANY_STEPS,
        InvalidUpdateError: INVALID,
        EmptyInputError: INVALID,
    }
    _growth = _BASE64

    def __init__(  # noqa: PLR0913 - what an author chooses
        self,
        graph: Graph,
        *,
        answer: str | None = None,
        nodes: str | Collection[str] | None = None,
        stream_mode: str | Sequence[str] = (),
        subgraphs: bool = False,
        show_tools: bool = False,
        serde: SerializerProtocol | None = None,
        steps: bool = True,
        stream: bool = True,
        urls: bool = False,
        **options: Any,
    ) -> None:
        given: Any = graph
        if isinstance(given, StateGraph):
            raise ConfigurationError("The graph is not compiled: pass `graph.compile()`.")
        super().__init__(graph, Pregel, options, steps=steps, show_tools=show_tools, urls=urls)
        spread = [name for name, kind in graph.channels.items() if isinstance(kind, DeltaChannel)]
        if spread:
            raise ConfigurationError(
                f"The graph's {', '.join(spread)} is a DeltaChannel, whose value is spread over"
                " checkpoints, and the last one alone is kept: use another channel."
            )
        modes = frozenset([stream_mode] if isinstance(stream_mode, str) else stream_mode)
        nodes = [nodes] if isinstance(nodes, str) else nodes
        keys = graph.output_channels
        keys = [keys] if isinstance(keys, str) else [*keys]
        _refuse("answer", frozenset([answer]) - {None}, keys)
        _refuse("stream_mode", modes - {_MESSAGES}, [_CUSTOM, _UPDATES])
        if not subgraphs:  # whose nodes are not known before they run
            _refuse(
                "nodes", frozenset(nodes or ()), [each for each in graph.nodes if each != START]
            )
        self.way_out = (
            'name the key of the state that has it, `LangGraphWorker(graph, answer="KEY")`, of'
            f" {', '.join(keys)}; or end the task in `finish(ctx, values)`."
        )
        if nodes is None and answer is not None:
            nodes = ()
        self._graph = graph
        self._answer = answer
        heard = None if nodes is None else frozenset(nodes)
        self._shows = _Shows(heard, modes, subgraphs, show_tools)
        self._serde = serde
        self._streams = stream

    def begin(self, ctx: TaskContext) -> Any:
        """Return the graph's input for a task's first message: by default a human's message.

        Its content is the message's text, or all its parts as LangChain's content blocks.

        >>> class Planner(LangGraphWorker):
        ...     def begin(self, ctx: TaskContext) -> Any:
        ...         return {"city": ctx.user_text}

        Raises:
            PartRefusedError: a part has no translation.
        """
        return {_MESSAGES: [HumanMessage(self.takes.prompt(ctx, _text, _block))]}

    async def finish(self, ctx: TaskContext, values: Any) -> None:
        """End a task whose graph has ended, given its state.

        By default the value of the key `answer` is sent: a text, the text and files of a message or
        of the last one of several, or data. Without such a key there is no further output.

        >>> class Planner(LangGraphWorker):
        ...     async def finish(self, ctx: TaskContext, values: Any) -> None:
        ...         await ctx.complete(values["plan"])
        """
        value = None if self._answer is None else self._value_in(values, self._answer)
        if isinstance(value, AIMessage):
            await _give_files(ctx, value)
        if value is None or isinstance(value, str | BaseMessage):
            await ctx.complete(_words(value) if isinstance(value, BaseMessage) else value)
        else:
            await ctx.complete_json(jsonable(value, fallback=str))

    def _value_in(self, values: Any, key: str) -> Any:
        """Return the value of a key of the state; of messages the last one."""
        is_one_value = isinstance(self._graph.output_channels, str)
        value = values if is_one_value else values.get(key)
        return value[-1] if isinstance(value, list) and value and _are_messages(value) else value

    async def show(self, ctx: TaskContext, mode: str, event: Any) -> None:
        """Show the client an event of `stream_mode`: a text, or JSON as a status's metadata.

        >>> class Planner(LangGraphWorker):
        ...     async def show(self, ctx: TaskContext, mode: str, event: Any) -> None:
        ...         await ctx.send_status(f"{mode}: {event}")
        """
        if isinstance(event, str):
            await ctx.send_status(event)
        else:
            await ctx.send_status(None, {mode: to_show(event)})

    async def _run(self, ctx: TaskContext, conversation: Conversation) -> None:
        thread = _Thread(ctx.context_id, self._serde)
        thread.restore(conversation.waiting or conversation.ended)
        graph = self._graph.copy({"checkpointer": thread.saver})
        if conversation.waiting is None:
            given = self.begin(ctx)
        else:
            given = await _answered(graph, thread, conversation)
        options = await self.passed.of(ctx, self._options)
        callers = Callers()
        config = merge_configs(options.pop("config", None), thread.config, {"callbacks": [callers]})
        said = _Said(ctx, Answer(ctx, streams=self._streams), self.show)
        with self._failures(ctx):
            if self._steps:
                steps = Steps(ctx, conversation.pauses)
                nodes = _Nodes(steps, graph, self._serde, given, said, self._shows)
                await nodes.stream(given, config, options)
            else:
                calls: RunnableConfig = {
                    "callbacks": [_ModelCalls(ctx, lambda _, counted: counted())]
                }
                config = merge_configs(config, calls)
                await _stream(graph, given, config, options, said, self._shows)
        state = await graph.aget_state(thread.config)
        if state.interrupts:
            asked = state.interrupts[0]
            by = callers.of(asked, namespace_of(thread.saver.asking(asked)[0]))
            await conversation.ask({**thread.dump(), "by": by}, asked.value)
        elif state.next:
            stopped = ", ".join(state.next)
            raise FinalError(
                f"The graph stopped before {stopped}: use interrupt() to ask.", client_text=INVALID
            )
        else:
            last = self._value_in(state.values, self._answer or _MESSAGES)
            if isinstance(last, AIMessage):
                check_end(_end_of(last), _words(last))
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
        self.saver = Saver(serde=serde)
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
            namespace = namespace_of(each)
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


async def _answered(graph: Graph, thread: _Thread, conversation: Conversation) -> Command[Any]:
    """Return the input that goes on with an answer, which is kept for the question of the task.

    Raises:
        FinalError: the graph is another one than that which has asked.
    """
    asked = (await graph.aget_state(thread.config)).interrupts
    if not asked:
        raise FinalError(
            "The graph has changed since it asked, and no node waits for the answer any more: begin"
            " a new task, or give the node that has asked its name again.",
            client_text=CHANGED,
        )
    (answer,), waiting = conversation.answers, conversation.waiting or {}
    thread.saver.answer(asked[0], waiting.get("by"), answer)
    return Command(resume={asked[0].id: answer})


def _refuse(option: str, given: frozenset[Any], there_are: list[str]) -> None:
    """Raise ConfigurationError for what an option names and the graph does not have."""
    for name in sorted(given - {*there_are}):
        raise ConfigurationError(
            f"LangGraphWorker(graph, {option}={name!r}): there is none of this name, but"
            f" {', '.join(there_are)}."
        )


@dataclass(frozen=True)
class _Shows:
    """What a client sees of a run."""

    nodes: frozenset[str] | None
    modes: frozenset[str]
    subgraphs: bool
    tools: bool

    def has_text(self, token: Any, namespace: str) -> bool:
        """Return True for a message that has an answer, or a piece of it."""
        if not _speaks(token):
            return False
        names = {each.partition(":")[0] for each in namespace.split("|")}
        return self.nodes is None or not self.nodes.isdisjoint(names)

    async def events(
        self, graph: Graph, given: Any, config: RunnableConfig, options: Any, *modes: str
    ) -> AsyncIterator[tuple[tuple[str, ...], str, Any]]:
        """Yield the events of a run: the subgraph, the mode, and what is told."""
        every: Any = [*{_MESSAGES, *modes}]
        events: Any = graph.astream(
            given, config, stream_mode=every, subgraphs=self.subgraphs, **options
        )
        async for event in events:
            yield event if self.subgraphs else ((), *event)


async def _stream(
    graph: Graph, given: Any, config: RunnableConfig, options: Any, said: _Said, shows: _Shows
) -> None:
    async for _, mode, event in shows.events(graph, given, config, options, *shows.modes):
        if mode != _MESSAGES:
            if "__interrupt__" not in event:  # is asked, and no update
                await said.add(mode, event)
        elif shows.has_text(event[0], event[1]["langgraph_checkpoint_ns"]):
            await said.add(mode, event[0])
    await said.end()


def _speaks(token: Any) -> TypeGuard[AIMessage]:
    return isinstance(token, AIMessage) and bool(_words(token) or _files_of(token))


def _words(message: BaseMessage) -> str:
    """Return the text of a message, or a model's refusal, which has a field of its own."""
    blocks = message.content if isinstance(message.content, list) else []
    refusals = [
        str(block.get("refusal"))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "refusal"
    ]
    refusal = "".join(refusals) or message.additional_kwargs.get("refusal") or ""
    return message.text + str(refusal)


def _end_of(message: BaseMessage) -> object:
    """Return why a model has ended its message, as its service names it."""
    told = message.response_metadata
    names = ("finish_reason", "stop_reason", "done_reason")
    cut = told.get("incomplete_details")
    return (cut or {}).get("reason") or next((told[name] for name in names if told.get(name)), None)


def _files_of(token: AIMessage) -> list[Any]:
    if isinstance(token.content, str):
        return []
    return [block for block in token.content_blocks if block["type"] in _FILES]


async def _give_files(ctx: TaskContext, message: AIMessage) -> None:
    for block in _files_of(message):
        if file := _file(block):
            await give(ctx, file)


class _Said:
    """What a graph says: its text as it comes, or whole, and its files when it has ended."""

    def __init__(self, ctx: TaskContext, answer: Answer, show: _Show) -> None:
        self._ctx = ctx
        self._answer = answer
        self._show = show
        self._whole: dict[str | None, str] = {}
        self._files: dict[str | None, AIMessageChunk] = {}

    def anew(self) -> _Said:
        """Return what says files of its own, in the same artifact."""
        return _Said(self._ctx, self._answer, self._show)

    async def add(self, mode: str, event: Any) -> None:
        """Take the next message, or piece of one; or what is shown beside them."""
        if mode == _MESSAGES:
            await self._say(event)
        elif mode == _CODE:
            await event()
        else:
            await self._show(self._ctx, mode, event)

    async def _say(self, token: AIMessage) -> None:
        words = _words(token)
        if words and self._answer.streams:
            await self._answer.add(words, token.id)
        elif words:
            self._whole[token.id] = self._whole.get(token.id, "") + words
        if files := _files_of(token):  # the pieces of a file are joined by their index
            piece = AIMessageChunk(content=files)
            self._files[token.id] = (
                self._files[token.id] + piece if token.id in self._files else piece
            )

    async def end(self) -> None:
        """Send the messages that are not streamed, and the files."""
        for message_id, words in self._whole.items():
            await self._answer.add(words, message_id)
        for message in self._files.values():
            await _give_files(self._ctx, message)


_Say = Callable[[], Awaitable[None]]


class _ModelCalls(BaseCallbackHandler):
    """Counts what the calls of models have used, each in the namespace in which it runs."""

    run_inline = True
    raise_error = True

    def __init__(self, ctx: TaskContext, tell: Callable[[str, Callable[[], None]], None]) -> None:
        self._ctx = ctx
        self._tell = tell
        self._where: dict[UUID, str] = {}

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - LangChain's
        messages: list[list[BaseMessage]],  # noqa: ARG002
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._ctx.check_budget()
        self._where[run_id] = (metadata or {}).get("langgraph_checkpoint_ns", "")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        where = self._where.pop(run_id, "")
        for one in (one for several in response.generations for one in several):
            message = getattr(one, "message", None)
            if message is not None:  # it goes on to the node, and to the model's next request
                message.content = unicode_of(message.content)
            used = getattr(message, "usage_metadata", None)
            if message is not None and used:
                counted = partial(
                    count_tokens,
                    self._ctx,
                    message.response_metadata.get("model_name"),
                    input_tokens=used["input_tokens"],
                    output_tokens=used["output_tokens"],
                    cached_tokens=used.get("input_token_details", {}).get("cache_read"),
                )
                self._tell(where, counted)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002
        self._where.pop(run_id, None)


class _ToolCalls(BaseCallbackHandler):
    """Has the calls of tools told, each with the namespace in which it runs."""

    run_inline = True

    def __init__(self, ctx: TaskContext, tell: Callable[[str, _Say], None]) -> None:
        self._ctx = ctx
        self._tell = tell
        self._calls: dict[UUID, tuple[str, str, str]] = {}

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        where = (metadata or {}).get("langgraph_checkpoint_ns", "")
        name = (serialized or {}).get("name", "")
        self._calls[run_id] = where, name, str(named.get("tool_call_id") or run_id)
        arguments = to_show(input_str if inputs is None else inputs)
        self._write(*self._calls[run_id], "called", arguments=arguments)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002
        self._write(*self._calls.pop(run_id), "returned")

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002
        self._write(*self._calls.pop(run_id), "raised")

    def _write(self, where: str, name: str, call: str, state: str, **more: Any) -> None:
        self._tell(where, partial(show_tool, self._ctx, name, call, state, **more))


_FILES: Final = frozenset({"image", "audio", "video", "file"})
"""The types of LangChain's content blocks that are files."""


def _text(text: str) -> str | dict[str, Any]:
    return {"type": "text", "text": text}


def _block(file: File) -> str | dict[str, Any]:
    block = {
        "type": "file" if file.kind == "document" else file.kind,
        "mime_type": file.media_type,
        **({"url": file.url} if file.url else {"base64": file.base64}),
    }
    return block if file.kind == "image" else {**block, "extras": {"filename": file.name}}


def _file(block: dict[str, Any]) -> File | None:
    """Return the file of a content block; None if it is kept by the model's service."""
    kind = block["type"]
    extras = block.get("extras", {})
    usual = f"image/{extras['output_format']}" if "output_format" in extras else _USUAL.get(kind)
    media_type, name = block.get("mime_type") or usual or "", extras.get("filename", "")
    url, data = block.get("url", ""), block.get("base64", "")
    return File(media_type, b64decode(data), url, name) if url or data else None


_USUAL: Final = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
"""What models make that do not say what it is."""


def _are_messages(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


# -- steps -----------------------------------------------------------------------------------


class _Run:
    """One run of a node, which is a step."""

    def __init__(self, node: str, key: str) -> None:
        self.node = node
        self.key = key
        self.said: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        self.writes: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.has_begun = False


def _task_of(namespace: str) -> str:
    """Return the id of the task of the graph, by whose node it is run, also in subgraphs."""
    return namespace.partition("|")[0].rpartition(":")[2]


class _Nodes(BaseCache[Any]):
    """The nodes of one turn as steps: LangGraph looks into this cache before it runs a node.

    What a node streams belongs to its step. Nodes that run side by side speak one after the other,
    so that each may speak before it is recorded; no node of the next round runs before all of a
    round are recorded.
    """

    def __init__(
        self,
        steps: Steps,
        graph: Graph,
        serde: SerializerProtocol | None,
        given: Any,
        said: _Said,
        shows: _Shows,
    ) -> None:
        super().__init__(serde=serde)
        self._ctx = steps.ctx
        self._steps = steps
        # What a node gets comes of the graph's input, of records, and of the state at the start.
        self._asked = digest("input", text_of(without_ids(given))).encode()
        self._said = said
        self._shows = shows
        self._others = graph.cache
        self._floor = asyncio.Lock()
        self._numbers: Counter[str] = Counter()
        self._prepared: defaultdict[str, deque[_Run]] = defaultdict(deque)
        self._by_key: dict[str, _Run] = {}
        self._by_id: dict[str, _Run] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._early: defaultdict[str, list[_Say]] = defaultdict(list)
        self._plain: set[str] = set()
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        handlers = set(graph.node_error_handler_map.values())
        policies = {
            name: CachePolicy(key_func=partial(self._prepare, name))
            for name, node in graph.nodes.items()
            if node.cache_policy is None and not node.tags and name not in handlers
        }
        nodes = {
            name: node.copy({"cache_policy": policies[name]}) if name in policies else node
            for name, node in graph.nodes.items()
        }
        self._graph = graph.copy({"cache": self, "nodes": nodes})

    async def stream(self, given: Any, config: RunnableConfig, options: dict[str, Any]) -> None:
        """Run the graph; return when all of its nodes are recorded."""
        token = outside.set(self._takes_over)
        handlers: list[BaseCallbackHandler] = [_ModelCalls(self._ctx, self._count)]
        if self._shows.tools:
            handlers.append(_ToolCalls(self._ctx, self._tell))
        config = merge_configs(config, {"callbacks": handlers})
        modes = [_TASKS, *(self._shows.modes - {_UPDATES})]
        try:
            events = self._shows.events(self._graph, given, config, options, *modes)
            async for where, mode, event in events:
                if mode == _TASKS:
                    await self._take_note(where, event)
                elif mode == _CUSTOM:
                    await self._say("|".join(where), mode, event)
                elif self._shows.has_text(event[0], event[1]["langgraph_checkpoint_ns"]):
                    await self._say(event[1]["langgraph_checkpoint_ns"], mode, event[0])
            await self._recorded()
            for task_id in [*self._early]:
                await self._say_early(task_id)
            await self._said.end()
        finally:
            outside.reset(token)
            for step in self._running:
                step.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _takes_over(self, event: Any) -> bool:
        """Let the step of a node say what the node's code emits."""
        config = var_child_runnable_config.get() or {}
        where = config.get("configurable", {}).get("checkpoint_ns", "")
        if not where or _task_of(where) in self._plain:
            return False
        self._tell(where, partial(active_turn(self._ctx).enqueue_event, event))
        return True

    def _count(self, where: str, counted: Callable[[], None]) -> None:
        """Let the step of a node count, so that its record has what was counted."""

        async def count() -> None:
            counted()

        self._tell(where, count)

    def _tell(self, where: str, say: _Say) -> None:
        """Let the step of a node say what its code tells, called in any thread."""
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._tell, where, say)
            return
        task_id = _task_of(where)
        if task_id in self._by_id:
            self._by_id[task_id].said.put_nowait((_CODE, say))
            self._begin(self._by_id[task_id])
        else:  # the stream has not told yet that the node runs, or it is no step
            self._early[task_id].append(say)

    async def _say_early(self, task_id: str) -> None:
        for say in self._early.pop(task_id, ()):
            await self._say(f":{task_id}", _CODE, say)

    def _prepare(self, node: str, *_: object) -> str:
        self._numbers[node] += 1
        run = _Run(node, self._steps.key("", self._numbers[node]))
        self._prepared[node].append(run)
        name = f"{node} {run.key}"
        self._by_key[xxh3_128_hexdigest(name.encode())] = run
        return name

    async def _take_note(self, where: tuple[str, ...], event: Any) -> None:
        """Take note that a node begins or ends to run."""
        is_end = "result" in event
        if is_end and _UPDATES in self._shows.modes and not (event["interrupts"] or event["error"]):
            update = {event["name"]: event["result"]}
            await self._say("|".join(where) or f"{event['name']}:{event['id']}", _UPDATES, update)
        if where:  # in a subgraph, which belongs to the node that runs it
            return
        if not is_end:
            if self._prepared[event["name"]]:
                self._by_id[event["id"]] = self._prepared[event["name"]].popleft()
            else:
                self._plain.add(event["id"])
            await self._say_early(event["id"])
            return
        await self._say_early(event["id"])
        run = self._by_id.pop(event["id"], None)
        if run is None:
            return
        run.said.put_nowait(None)
        if event["interrupts"]:
            run.writes.set_result(None)
        if event["error"]:
            run.writes.cancel()
        self._begin(run)

    async def _say(self, namespace: str, mode: str, event: Any) -> None:
        """Say what a node tells, in its step; a subgraph is part of the node that runs it.

        What a node writes does not tell its name: it is said at once where several run.
        """
        run = self._by_id.get(_task_of(namespace))
        if not namespace and len(self._by_id) == 1:
            (run,) = self._by_id.values()
        if run is None:
            await self._said.add(mode, event)
        else:
            run.said.put_nowait((mode, event))
            self._begin(run)

    def _begin(self, run: _Run) -> None:
        if not run.has_begun:
            run.has_begun = True
            self._running.add(asyncio.create_task(self._step(run)))

    async def _step(self, run: _Run) -> None:
        async with self._floor:
            with suppress(NotRecordedError):
                await self._steps.record(run.node, self._listen, run, key=run.key)

    async def _listen(self, run: _Run) -> bytes:
        """Say what a node tells; return its writes as bytes: none after an interrupt."""
        said = self._said.anew()
        while (told := await run.said.get()) is not None:
            await said.add(*told)
        await said.end()
        if run.writes.cancelled():
            raise NotRecordedError(run.node, "", "")
        writes = await run.writes
        kind, content = self.serde.dumps_typed(writes)
        return b"\n".join([self._asked, kind.encode(), content])

    async def _recorded(self) -> None:
        """Return when all nodes are recorded that have ended."""
        await asyncio.gather(*self._running)
        self._running.clear()

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        await self._recorded()
        found: dict[FullKey, Any] = {}
        for key in keys:
            run = self._by_key.get(key[1])
            if run is None:
                continue
            record = await self._steps.recorded(run.node, run.key)
            if record is not None:
                asked, kind, content = record.split(b"\n", 2)
                if asked != self._asked:
                    what = f"given the graph another input than that of the record of {run.node!r}"
                    self._steps.refuse(what)
                writes = self.serde.loads_typed((kind.decode(), content))
                if writes is not None:
                    found[key] = writes
        if self._others is not None:
            found |= await self._others.aget([key for key in keys if key[1] not in self._by_key])
        return found

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        for key, (writes, _) in pairs.items():
            if key[1] in self._by_key:
                self._by_key[key[1]].writes.set_result([tuple(write) for write in writes])
            elif self._others is not None:
                await self._others.aset({key: pairs[key]})

    # The graph that has this cache is the turn's own, and is awaited: only tasks of it come here.

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:  # noqa: ARG002
        """Return nothing: what runs in a thread is in no step."""
        return {}

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Do nothing."""

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Do nothing."""

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Do nothing."""
