"""LangGraph behind `LangGraphWorker`: threads, interrupts, subgraphs and streamed tokens."""

from __future__ import annotations

import asyncio
import operator
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from a2a.types import TaskState
from google.protobuf.json_format import MessageToDict
from langchain_core.language_models import (
    BaseChatModel,
    FakeListChatModel,
    FakeListLLM,
    FakeMessagesListChatModel,
)
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langchain_core.messages.block_translators.openai import convert_to_openai_data_block
from langchain_core.messages.content import create_file_block, create_image_block, create_text_block
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk as Chunk
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.runtime import get_runtime
from langgraph.types import CachePolicy, Send, interrupt
from pydantic import BaseModel

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import TOO_MANY_STEPS
from a2a_serverless.frameworks.langgraph import LangGraphWorker, _block
from a2a_serverless.frameworks.parts import File
from a2a_serverless.steps import ask
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.worker import TaskContext, current_context
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless_tools.testing import AgentBench
from tests.support.workers import artifact_texts
from tests.unit.frameworks import asking as questions
from tests.unit.frameworks import contract, files, talks
from tests.unit.frameworks.files import PICTURE
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere, question

S = TaskState
Update = dict[str, Any]


class State(TypedDict):
    """The messages, and a note that the last task wins."""

    messages: Annotated[list[AnyMessage], add_messages]
    note: str


def texts(state: MessagesState | State) -> str:
    return ", ".join(message.text for message in state["messages"])


def repeat(state: MessagesState) -> Update:
    """Say what the conversation is, and ask where the message is a question."""
    said = state["messages"][-1].text
    answer = f" {interrupt(said)}" if said.endswith("?") else ""
    return {"messages": [AIMessage(f"[{texts(state)}]{answer}")]}


def chain(schema: type, **nodes: Any) -> Any:
    """A graph of nodes in a row."""
    graph: Any = StateGraph(schema)
    for before, (name, node) in zip([START, *nodes], nodes.items(), strict=False):
        graph.add_node(name, node).add_edge(before, name)
    return graph.add_edge(list(nodes)[-1], END)


async def test_an_answer_resumes_the_node_that_asked() -> None:
    """It gets a text or data; the messages of a task that ended meanwhile are joined."""
    seen: list[str | None] = []

    def note(state: State) -> Update:
        seen.append(state.get("note"))
        return {"note": state["messages"][0].text}

    talk = Talk(LangGraphWorker(chain(State, note=note, repeat=repeat).compile()))
    first, asks = await talk.say("one?")
    assert question(asks) == "one?"
    second, _ = await talk.say("two?")
    assert answered(await talk.answer(second, {"n": 2})) == "[two?] {'n': 2}"
    assert answered(await talk.answer(first, "1")) == "[one?] 1"
    _, last = await talk.say("c")
    assert answered(last) == "[two?, [two?] {'n': 2}, one?, [one?] 1, c]"
    assert seen == [None, None, "one?"]


async def test_a_graph_that_has_changed_while_it_waited(caplog: pytest.LogCaptureFixture) -> None:
    """The node that has asked is gone: the task fails at once, and the log says why."""
    talk = Talk(LangGraphWorker(chain(MessagesState, repeat=repeat).compile()), max_attempts=3)
    head, _ = await talk.say("one?")
    talk.become(LangGraphWorker(chain(MessagesState, renamed=repeat).compile()))
    assert (await talk.answer(head, "1")).status.state == S.TASK_STATE_FAILED
    assert "no node waits for the answer any more" in caplog.text


async def test_what_the_turns_of_a_task_say_is_parted() -> None:
    """A blank line stands between what was said before a question and after its answer."""

    def says(_: MessagesState) -> Update:
        return {"messages": [AIMessage("Deleting it.")]}

    def asks(_: MessagesState) -> Update:
        return {"messages": [AIMessage(f"It is {interrupt('sure?')}.")]}

    talk = Talk(LangGraphWorker(chain(MessagesState, says=says, asks=asks).compile()))
    head, _ = await talk.say("a")
    assert answered(await talk.answer(head, "gone")) == "Deleting it.\n\nIt is gone."


class Order(BaseModel):
    what: str


async def test_classes_of_a_state_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """A serializer that names them reads them as they were, and warns of none."""

    class Orders(TypedDict):
        orders: Annotated[list[Order], operator.add]

    class Worker(LangGraphWorker):
        def begin(self, ctx: TaskContext) -> Any:
            return {"orders": [Order(what=ctx.user_text)]}

        async def finish(self, ctx: TaskContext, values: Any) -> None:
            await ctx.complete_json([order.what for order in values["orders"]])

    graph = chain(Orders, node=lambda _: {"orders": []}).compile()
    talk = Talk(Worker(graph, serde=JsonPlusSerializer(allowed_msgpack_modules=[Order])))
    assert (await contract.answers(talk, ["tea", "cake"]))[-1] == ["tea", "cake"]
    assert "unregistered" not in caplog.text


async def test_what_a_graph_removes_is_forgotten() -> None:
    """A conversation that is summed up stays short."""

    def shorten(state: MessagesState) -> Update:
        kept = AIMessage(f"{len(state['messages'])}")
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), kept]}

    talk = Talk(LangGraphWorker(chain(MessagesState, shorten=shorten).compile()))
    assert await contract.answers(talk, "aaa") == ["1", "2", "2"]


async def test_a_breakpoint_fails_the_task() -> None:
    """A graph that stops and asks nothing cannot be answered."""
    graph = chain(MessagesState, repeat=repeat).compile(interrupt_before=["repeat"])
    _, task = await Talk(LangGraphWorker(graph)).say("a")
    assert task.status.state == S.TASK_STATE_FAILED


def test_a_graph_that_cannot_be_kept_is_refused() -> None:
    """The sentence has the call that is missing, or the value that the last checkpoint has not."""
    with pytest.raises(ConfigurationError, match=r"pass `graph\.compile\(\)`"):
        LangGraphWorker(chain(MessagesState, repeat=repeat))

    class Spread(TypedDict):
        log: Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *writes], list)]

    with pytest.raises(ConfigurationError, match="log is a DeltaChannel"):
        LangGraphWorker(chain(Spread, node=lambda _: {"log": ["x"]}).compile())


async def test_a_record_is_of_no_other_input() -> None:
    """`begin` may return something else in the next attempt: the turn starts over, mixes none."""
    attempts = iter("123")

    class Changing(LangGraphWorker):
        def begin(self, ctx: TaskContext) -> Any:
            return {"messages": [HumanMessage(next(attempts))]}

    def say(state: MessagesState) -> Update:
        return {"messages": [AIMessage(f"[{texts(state)}]")]}

    graph = chain(MessagesState, first=say, second=say).compile()
    assert answered(await talks.started_over(Changing(graph), 2)) == "[3]\n\n[3, [3]]"


async def test_an_input_that_differs_each_time_ends() -> None:
    """A turn longer than a worker begins as often as it has attempts; then a sentence says why."""

    def make(time: Callable[[], str], work: Callable[[], None]) -> LangGraphWorker:
        class Timed(LangGraphWorker):
            def begin(self, ctx: TaskContext) -> Any:
                return {"messages": [HumanMessage(time())]}

        def node(_: Any) -> Update:
            work()
            return {"messages": [AIMessage("Worked.")]}

        return Timed(chain(MessagesState, first=node, second=node, third=node).compile())

    what = "given the graph another input than that of the record of 'first'"
    await talks.differs_each_time(make, what)


class Shapes(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    tags: set[int] = set()


async def test_an_equal_input_is_the_same_one() -> None:
    """Ids that are made anew in each attempt, and the order of a set, differ in nothing."""

    async def play(calls: list[str]) -> Any:
        numbers = cycle([0, 1])

        class Anew(LangGraphWorker):
            def begin(self, ctx: TaskContext) -> Any:
                block = dict(create_text_block(ctx.user_text))
                said, number = HumanMessage([block], id=uuid4().hex), next(numbers)
                # The order of a set is that in which its members came.
                return Shapes(messages=[said], tags={8 * number, 8 - 8 * number})

        def say(_: Shapes) -> Update:
            calls.append("say")
            return {"messages": [AIMessage("Said.")]}

        graph = chain(Shapes, first=say, second=say).compile()
        return answered((await Talk(Anew(graph), max_attempts=3).say("one"))[1])

    assert await killed_everywhere(play) == ["first", "second"]


class Report(MessagesState):
    report: Any


def says(text: str, **more: Any) -> Any:
    """A node whose model says something, in two tokens."""

    async def node(_: Any) -> Update:
        return {"messages": [await FakeListChatModel(responses=[text]).ainvoke("go")], **more}

    return node


async def test_the_nodes_whose_text_is_the_answer() -> None:
    """A router's JSON is none of it; a node of a subgraph may be named, too."""
    routes, answers = says('{"next": "writer"}'), says("Tea.")
    graph = chain(MessagesState, router=routes, writer=answers).compile()
    assert answered((await Talk(LangGraphWorker(graph, nodes="writer")).say("a"))[1]) == "Tea."
    outer = chain(MessagesState, router=routes, inner=graph, last=routes).compile()
    for node, subgraphs, has_all in (("writer", True, False), ("inner", False, True)):
        worker = LangGraphWorker(outer, nodes=[node], subgraphs=subgraphs)
        text = answered((await Talk(worker).say("a"))[1])
        assert text.endswith("Tea."), text
        assert ("next" in text) == has_all, text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Tea.", "Tea."),
        ([HumanMessage("a"), AIMessage("Tea.")], "Tea."),
        (AIMessage("Tea."), "Tea."),
        ({"cups": 2}, {"cups": 2}),
        (Order(what="tea"), {"what": "tea"}),
    ],
)
async def test_the_answer_may_be_another_key(value: Any, expected: Any) -> None:
    """It is sent at the end, and what models say is not streamed."""
    graph = chain(Report, writer=says("Draft", report=value)).compile()
    assert answered((await Talk(LangGraphWorker(graph, answer="report")).say("a"))[1]) == expected
    _, task = await Talk(LangGraphWorker(graph, answer="report", nodes=["writer"])).say("a")
    assert artifact_texts(task)["answer"][0].startswith("Draft")


@pytest.mark.parametrize("steps", [True, False])
async def test_an_answer_that_is_not_streamed_is_one_chunk_of_each_message(*, steps: bool) -> None:
    """`stream=False` is for clients that put something between the chunks of an artifact."""
    graph = chain(Report, one=says("Let me see."), two=says("Tea.")).compile()
    streamed = await talks.chunks(LangGraphWorker(graph, steps=steps))
    assert len(streamed) > 2
    whole = await talks.chunks(LangGraphWorker(graph, stream=False, steps=steps))
    assert whole == ["Let me see.", "\n\nTea."]
    assert "".join(streamed) == "".join(whole)


REFUSAL: Any = {"type": "refusal", "refusal": "I cannot."}
REFUSALS = (AIMessage([REFUSAL]), AIMessage("", additional_kwargs={"refusal": "I cannot."}))


@pytest.mark.parametrize("message", REFUSALS)
@pytest.mark.parametrize("options", [{}, {"answer": "messages"}])
async def test_what_a_model_says_of_its_refusal_is_the_answer(message: Any, options: Any) -> None:
    """The graph goes on after it, as after any message."""
    graph = chain(MessagesState, refuses=lambda _: {"messages": [message]}).compile()
    assert answered((await Talk(LangGraphWorker(graph, **options)).say("a"))[1]) == "I cannot."


@pytest.mark.parametrize(
    ("options", "there_are"),
    [
        ({"answer": "repot"}, "messages, report."),
        ({"nodes": ["write"]}, "writer."),
        ({"stream_mode": ["debug"]}, "custom, updates."),
    ],
)
def test_what_the_graph_does_not_have_is_refused(options: Any, there_are: str) -> None:
    """The sentence names what there is."""
    with pytest.raises(ConfigurationError, match=f"there is none of this name, but {there_are}"):
        LangGraphWorker(chain(Report, writer=says("Tea.")).compile(), **options)


async def test_an_empty_answer_names_the_keys(caplog: pytest.LogCaptureFixture) -> None:
    """One of them has the answer that the client did not get."""
    graph = chain(Report, writer=lambda _: {"report": "Tea."}).compile()
    await Talk(LangGraphWorker(graph)).say("a")
    assert '`LangGraphWorker(graph, answer="KEY")`, of messages, report; or end' in caplog.text


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_what_nodes_write_and_return_is_shown(*, subgraphs: bool) -> None:
    """A text is a status, other values are its metadata: once, whichever record dies."""

    async def play(calls: list[str], **options: Any) -> list[Any]:
        async def reads(state: Report) -> Update:
            calls.append("reads")
            write = get_stream_writer()
            write(f"Reading {state['messages'][0].text}.")
            write({"page": 1})
            return {"report": {"pages": 3}}

        def ends(_: Report) -> Update:
            calls.append("ends")
            return {"messages": [AIMessage("Read.")]}

        made = chain(Report, reads=reads, ends=ends).compile()
        graph = chain(Report, inner=made).compile() if subgraphs else made
        shown: Any = {"stream_mode": ["custom", "updates"], "subgraphs": subgraphs}
        talk = Talk(LangGraphWorker(graph, **shown, **options), max_attempts=3)
        head, task = await talk.say("May")
        assert answered(task) == "Read."
        written = await talk.entries(head, StatusChanged)
        told = [entry.metadata for entry in written if entry.metadata]
        return [contract.statuses(task), dict(task.metadata)["custom"], [*map(MessageToDict, told)]]

    async def shown(calls: list[str]) -> list[Any]:
        texts, page, _ = await play(calls)
        return [texts, page]

    assert await killed_everywhere(shown, in_flight=2 if subgraphs else 1)
    for steps in (True, False):
        texts, page, told = await play([], steps=steps)
        assert (texts, dict(page)) == (["Reading May."], {"page": 1})
        updates = [each["updates"] for each in told if "updates" in each]
        assert {"reads": {"report": {"pages": 3}}} in updates
        assert len(updates) == (3 if subgraphs else 2), updates


@tool
def look_up(what: str) -> str:
    """Look it up, in a thread."""
    return f"{what} is sunny"


async def test_a_subgraph_belongs_to_the_node_that_runs_it() -> None:
    """What it says is kept with that node's record, and no call is made twice."""

    async def play(calls: list[str]) -> Any:
        def noted(name: str) -> Any:
            said = says(f"{name}.")

            async def node(state: MessagesState) -> Update:
                calls.append(name)
                await current_context().emit_text_artifact(f"{name} ", "notes", append=True)
                await asyncio.to_thread(look_up.invoke, {"what": "Oslo"})
                made: Update = await said(state)
                return made

            return node

        inner = chain(MessagesState, first=noted("first"), second=noted("second")).compile()
        graph = chain(MessagesState, inner=inner, last=noted("last")).compile()
        worker = LangGraphWorker(graph, subgraphs=True, show_tools=True)
        _, task = await Talk(worker, max_attempts=3).say("a")
        said = {name: "".join(texts) for name, texts in artifact_texts(task).items()}
        return said, contract.statuses(task)

    assert await killed_everywhere(play, in_flight=2) == ["inner", "last"]
    expected = {"answer": "first.\n\nsecond.\n\nlast.", "notes": "first second last "}
    assert await play([]) == (expected, ["Calls look_up."] * 3)


@pytest.mark.parametrize("cache", [InMemoryCache, lambda: None])
async def test_a_node_that_is_no_step_says_what_it_emits(cache: Callable[[], Any]) -> None:
    """One that the author's own cache serves speaks outside of steps, at once."""

    async def node(_: MessagesState) -> Update:
        await current_context().progress(1, 2, "Half way.")
        await asyncio.sleep(0)
        await current_context().emit_text_artifact("noted", "notes")
        look_up.invoke({"what": "Oslo"})
        return {"messages": [AIMessage("Done.")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node, cache_policy=CachePolicy())
    graph = graph.add_edge(START, "node").compile(cache=cache())
    _, task = await Talk(LangGraphWorker(graph, show_tools=True)).say("a")
    assert artifact_texts(task) == {"notes": ["noted"], "answer": ["Done."]}
    assert contract.statuses(task) == ["Half way.", "Calls look_up."]


async def test_a_model_without_messages_and_counts() -> None:
    """What completes a text, and what reports no tokens, is answered, and counts nothing."""
    nothing: Any = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}

    async def completes(_: MessagesState) -> Update:
        text = await FakeListLLM(responses=["Once"]).ainvoke("go")
        said = AIMessage(f"{text} more", usage_metadata=nothing)
        return {"messages": [await FakeMessagesListChatModel(responses=[said]).ainvoke("go")]}

    talk = Talk(LangGraphWorker(chain(MessagesState, completes=completes).compile()))
    head, task = await talk.say("a")
    assert answered(task) == "Once more"
    assert not (await talk.bench.head(head)).usage


async def test_an_interrupt_is_no_update() -> None:
    """It is asked, and not shown beside the question, with steps and without."""
    for steps in (True, False):
        graph = chain(MessagesState, repeat=repeat).compile()
        talk = Talk(LangGraphWorker(graph, stream_mode="updates", steps=steps))
        head, task = await talk.say("one?")
        assert (question(task), dict(task.metadata)) == ("one?", {})
        assert "updates" in (await talk.answer(head, "1")).metadata


async def test_a_config_of_the_turn() -> None:
    """A function of the turn makes it; the thread is the conversation's all the same."""
    seen = []

    def node(_: MessagesState, config: RunnableConfig) -> Update:
        seen.append([config["configurable"][name] for name in ("tenant", "thread_id")])
        return {"messages": [AIMessage("Seen.")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node).add_edge(START, "node").add_edge("node", "node")

    def config(ctx: TaskContext) -> RunnableConfig:
        return {"configurable": {"tenant": ctx.user_text, "thread_id": "x"}, "recursion_limit": 3}

    talk = Talk(LangGraphWorker(graph.compile(), config=config), max_attempts=3)
    talks.fails(await talk.told("north"), TOO_MANY_STEPS)
    assert seen == [["north", "ctx"]] * 3


def asking(paid: list[str], release: int, *names: str) -> LangGraphWorker:
    """An agent of `asking.Make`: its nodes are steps, and each name is deleted by a run of its own.

    Their last node is named in an edge, as they run side by side.
    """

    def model(_: Any) -> dict[str, Any]:
        paid.append(f"model {release}")
        return {}

    def look(_: Any) -> dict[str, Any]:
        paid.append("look")
        return {"said": ["seen"]}

    def delete(state: Any) -> dict[str, Any]:
        if interrupt({"about": state["what"]}) == "yes":
            paid.append(f"delete {state['what']}")
        return {"said": [state["what"]]}

    class Said(TypedDict):
        said: Annotated[list[str], operator.add]

    def deletes(_: Any) -> list[Send]:
        return [Send("delete", {"what": name}) for name in names]

    looking = "look" if release == 1 else "look_up"
    built: Any = StateGraph(Said).add_node("delete", delete)
    for name, node in (("plan", model), (looking, look), ("decide", model), ("say", model)):
        built.add_node(name, node)
    built.add_edge(START, "plan").add_edge("plan", looking).add_edge(looking, "decide")
    built.add_edge("delete", "say")
    built.add_conditional_edges("decide", deletes, ["delete"])

    class Given(LangGraphWorker):
        def begin(self, ctx: TaskContext) -> Any:
            return {"said": [ctx.user_text]}

    return Given(built.compile(), answer="said")


@pytest.mark.parametrize("check", questions.CHECKS)
async def test_questions(check: Any) -> None:
    """What `asking` states of each adapter holds for this one."""
    await check(asking, questions.plainly)


# -- files -----------------------------------------------------------------------------------------


class Artist(BaseChatModel):
    """A model of `files.Made`; its picture comes in two pieces of a stream."""

    play: Any

    @property
    def _llm_type(self) -> str:
        return "artist"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Chunk]:
        play = self.play
        play.calls.append(f"request {len(messages)}")
        given = [m for m in messages if not isinstance(m, AIMessage)]
        play.seen.append([told(each) for m in given for each in m.content_blocks])
        if play.error is not None:
            raise play.error
        name = given[-1].content_blocks[0].get("text")
        if name in ("ask", "tool"):
            call = tool_call_chunk(name=name, args="{}", id=f"{len(messages)}", index=0)
            yield Chunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
            yield Chunk(message=AIMessageChunk(content="", usage_metadata=USED))
            return
        end = {"finish_reason": {"cut": "length", "refused": "content_filter"}.get(play.end)}
        text = "" if play.end == "refused" else play.text
        yield Chunk(message=AIMessageChunk(content=text, response_metadata=end))
        yield Chunk(message=AIMessageChunk(content="", usage_metadata=USED))
        content = b64encode(play.file).decode()
        pieces = [{"base64": content[:99], "mime_type": "image/png"}, {"base64": content[99:]}]
        for piece in pieces if play.file else []:
            yield Chunk(message=AIMessageChunk(content=[{"type": "image", "index": 1, **piece}]))


USED: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
USED["input_token_details"] = {"cache_read": 4}


class Given(TypedDict):
    said: str


def told(block: Any) -> Any:
    if block["type"] == "text":
        return block["text"]
    return (block["mime_type"], block.get("url") or b64decode(block["base64"]))


def made(seen: list[Any], **options: Any) -> LangGraphWorker:
    """A graph of `files.Made`; its tool returns a picture."""
    play = files.taken(seen, options)
    artist = Artist(play=play)

    def model(state: MessagesState) -> Update:
        return {"messages": [artist.invoke(state["messages"])]}

    @tool
    async def draw() -> list[Any]:
        """Draw."""
        play.calls.append("tool")
        await play.work(get_runtime().context)
        content = b64encode(PICTURE).decode()
        return [dict(create_image_block(base64=content, mime_type="image/png"))]

    async def tools(state: MessagesState) -> Update:
        last: Any = state["messages"][-1]
        call = last.tool_calls[0]
        if call["name"] == "ask":
            return {"messages": [ToolMessage(interrupt("Sure?"), tool_call_id=call["id"])]}
        return {"messages": [await draw.ainvoke(call)]}

    def then(state: MessagesState) -> str:
        last: Any = state["messages"][-1]
        return "tools" if last.tool_calls else END

    graph = StateGraph(MessagesState, context_schema=Given).add_node(model).add_node(tools)
    graph.add_edge(START, "model").add_conditional_edges("model", then).add_edge("tools", "model")
    return LangGraphWorker(graph.compile(), **options)


@pytest.mark.long(but=9)
@pytest.mark.parametrize("check", files.CHECKS)
async def test_files(check: Callable[[files.Made], Any]) -> None:
    """What `files` states of each adapter holds for this one."""
    await check(made)


@pytest.mark.parametrize("check", contract.CHECKS)
async def test_contract(check: Callable[[files.Made, str], Any]) -> None:
    """What `contract` states of each adapter holds for this one."""
    await check(made, "context")


async def test_what_a_node_says_may_be_files_by_url() -> None:
    """A file by its URL goes on as such, with its name; one that only its service has does not."""

    def says(_: MessagesState) -> Update:
        report = create_file_block(url="https://example.com/r", mime_type="application/pdf")
        named = {**report, "extras": {"filename": "report.pdf"}}
        elsewhere = create_image_block(file_id="1", mime_type="image/png")
        return {"messages": [AIMessage([named, dict(elsewhere)])]}

    _, task = await Talk(LangGraphWorker(chain(MessagesState, says=says).compile())).say("a")
    (part,) = [part for artifact in task.artifacts for part in artifact.parts]
    shown = (part.url, part.media_type, part.filename)
    assert shown == ("https://example.com/r", "application/pdf", "report.pdf")


def test_langchain_writes_the_blocks_for_a_service() -> None:
    """As OpenAI takes them: with the media type, the bytes and the name."""
    files = [File("image/png", b"1"), File("application/pdf", b"2", filename="May.pdf")]
    blocks: list[Any] = [_block(file) for file in files]
    image, document = map(convert_to_openai_data_block, blocks)
    assert image["image_url"] == {"url": "data:image/png;base64,MQ=="}
    data = "data:application/pdf;base64,Mg=="
    assert document["file"] == {"file_data": data, "filename": "May.pdf"}


def test_a_node_asks_by_interrupt_and_not_by_ask() -> None:
    """A node is a step of the adapter: the sentence has the right call."""

    async def asks(state: MessagesState) -> dict[str, Any]:
        await ask("Which?")
        return {"messages": []}

    graph = StateGraph(MessagesState).add_node("asks", asks).add_edge(START, "asks").compile()
    with AgentBench(lambda: LangGraphWorker(graph)) as bench:
        run = bench.send("hello")
    assert run.state == "failed"
    assert isinstance(run.errors[0], WrongCallError)
    assert "`interrupt(…)`" in str(run.errors[0])
