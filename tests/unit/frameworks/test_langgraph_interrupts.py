"""Answers to `interrupt()` where several calls ask at once: each goes to its question."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from a2a.types import TaskState
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.types import interrupt

from a2a_serverless.frameworks.adapter import INVALID
from a2a_serverless.frameworks.langgraph import LangGraphWorker
from a2a_serverless.frameworks.langgraph_interrupts import _Answers
from tests.unit.frameworks.talks import LONG, Talk, answered, ends_at, ends_of, fails, question

COUNTS = (2, 5) if LONG else (3,)
CONVERSATIONS = 67 if LONG else 1
"""Of each number of calls: 200 of each form and tool with A2A_FAULTS=long."""
MANY = 1_000 if LONG else 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*create_react_agent"),
    pytest.mark.timeout(1800 if LONG else 300),
]

Questions = Callable[[str], list[Any]]


def named(name: str) -> list[Any]:
    return [{"delete": name}]


def twice(name: str) -> list[Any]:
    return [f"Delete {name}?", f"Delete the copies of {name}, too?"]


class Caller(BaseChatModel):
    """A model that calls its tool for each name at once, and then says what the calls return."""

    names: list[str]

    @property
    def _llm_type(self) -> str:
        return "caller"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        said = AIMessage(" ".join(sorted(m.text for m in messages[-len(self.names) :])))
        if isinstance(messages[-1], HumanMessage):
            calls: Any = [{"name": "delete", "args": {"name": n}, "id": n} for n in self.names]
            said = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def look_up(name: str) -> str:
    """Look it up, as a part of another call."""
    return name


def plain(asks: Questions) -> BaseTool:
    @tool
    def delete(name: str) -> str:
        """Delete."""
        look_up.invoke({"name": name})
        return "+".join([name, *(interrupt(each) for each in asks(name))])

    return delete


def waiting(asks: Questions) -> BaseTool:
    @tool
    async def delete(name: str) -> str:
        """Delete, after as many rounds of the loop as chance has it."""
        answers = []
        for each in asks(name):
            for _ in range(random.randrange(20)):  # noqa: S311 - chance alone
                await asyncio.sleep(0)
            answers.append(interrupt(each))
        return "+".join([name, *answers])

    return delete


def node(model: Caller, made: BaseTool) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([made])).add_edge(START, "model").add_edge("tools", "model")
    return graph.add_conditional_edges("model", calls_or_ends).compile()


def calls_or_ends(state: MessagesState) -> str:
    last: Any = state["messages"][-1]
    return "tools" if last.tool_calls else END


def agent_1(model: Caller, made: BaseTool) -> Any:
    return create_react_agent(model, [made], version="v1")


def agent_2(model: Caller, made: BaseTool) -> Any:
    return create_react_agent(model, [made], version="v2")


def below(model: Caller, made: BaseTool) -> Any:
    """The agent is a subgraph."""
    graph: Any = StateGraph(MessagesState).add_node("agent", agent_1(model, made))
    return graph.add_edge(START, "agent").add_edge("agent", END).compile()


async def conversation(graph: Any, names: list[str], asks: Questions, **options: Any) -> None:
    """Answer each question by itself; check that each call has the answers to its questions."""
    talk = Talk(LangGraphWorker(graph, **options))
    head, task = await talk.say("Delete them")
    open_ = [each for name in names for each in asks(name)]
    while open_:
        asked = question(task)
        open_.remove(asked)
        task = await talk.answer(head, f"yes to {asked}")
    expected = ["+".join([name, *(f"yes to {each}" for each in asks(name))]) for name in names]
    assert answered(task).endswith(" ".join(sorted(expected))), answered(task)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("form", "made"), [(node, plain), (agent_1, waiting), (agent_2, waiting), (below, waiting)]
)
async def test_each_answer_goes_to_its_call(form: Any, made: Any) -> None:
    """Whoever comes first when the node runs again: no call runs without its own question."""
    for count in COUNTS:
        names = [f"n{number}" for number in range(count)]
        for number in range(CONVERSATIONS):
            asks = (named, twice)[(number + count) % 2]
            await conversation(form(Caller(names=names), made(asks)), names, asks)


class Said(TypedDict):
    said: list[str]


def one_node(function: Any, **options: Any) -> LangGraphWorker:
    graph: Any = StateGraph(Said).add_node("node", function, **options)
    graph.add_edge(START, "node").add_edge("node", END)

    class Begins(LangGraphWorker):
        def begin(self, _: Any) -> Any:
            return {"said": []}

    return Begins(graph.compile(), answer="said")


async def test_a_question_that_has_changed_is_asked() -> None:
    """What was answered was another one."""
    prices = iter([10, 12, 12])

    def asks(_: Said) -> Any:
        return {"said": [interrupt(f"Pay {next(prices)} EUR?")]}

    talk = Talk(one_node(asks))
    head, task = await talk.say("go")
    assert question(task) == "Pay 10 EUR?"
    assert question(await talk.answer(head, "yes")) == "Pay 12 EUR?"
    assert answered(await talk.answer(head, "no")) == ["no"]


async def test_a_tool_that_fails_asks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is the node's, and none of the adapter's own."""

    @tool
    def delete(name: str) -> str:
        """Delete."""
        raise LookupError(f"{name} is not there")

    task = (await Talk(LangGraphWorker(node(Caller(names=["a"]), delete))).say("Delete it"))[1]
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "LookupError" in caplog.text
    assert "on_tool_error callback" not in caplog.text


async def test_many_answers_to_one_question() -> None:
    """Each is there when the node runs again, in its order."""

    def asks(_: Said) -> Any:
        said: list[str] = []
        while said[-1:] != ["stop"]:
            said.append(interrupt("And?"))
        return {"said": said}

    talk = Talk(one_node(asks))
    head, _ = await talk.say("go")
    told = [*map(str, range(MANY))]
    for each in told:
        assert question(await talk.answer(head, each)) == "And?"
    assert answered(await talk.answer(head, "stop")) == [*told, "stop"]


async def test_a_call_that_was_answered_survives_a_death() -> None:
    """Whichever record an attempt dies at, or is handed over with, each call has its answer."""

    async def play() -> Any:
        talk = Talk(LangGraphWorker(node(Caller(names=["a", "b"]), plain(named))), max_attempts=3)
        head, task = await talk.say("Delete them")
        for _ in range(2):
            task = await talk.answer(head, f"yes to {question(task)['delete']}")
        return answered(task)

    with ends_at(0, "before") as recorded:
        assert await play() == "a+yes to a b+yes to b"
    for number, end in ends_of(len(recorded)):
        with ends_at(number, end):
            assert await play() == "a+yes to a b+yes to b"


def test_what_reads_answers_otherwise_gets_none() -> None:
    """Only `interrupt()` itself gets one, by its question: nothing is given by position."""
    answers = _Answers([{"asked": "x", "by": None, "answer": "yes"}])
    assert not answers
    assert [*answers] == list.copy(answers) == []


async def test_graphs_that_ask_side_by_side_in_one_node(caplog: pytest.LogCaptureFixture) -> None:
    """LangGraph keeps them by their order: the task fails, where an answer might go astray."""

    def asks(state: Said) -> Any:
        return {"said": [interrupt({"delete": state["said"][0]})]}

    inner: Any = StateGraph(Said).add_node("asks", asks)
    graph = inner.add_edge(START, "asks").add_edge("asks", END).compile()

    @tool
    def delete(name: str) -> str:
        """Delete."""
        return f"{name}+{graph.invoke({'said': [name]})['said'][0]}"

    talk = Talk(LangGraphWorker(node(Caller(names=["a", "b"]), delete)), max_attempts=3)
    fails(await talk.told("Delete them"), INVALID)
    assert "give each call a task of its own" in caplog.text
    await conversation(node(Caller(names=["a"]), delete), ["a"], named)
    await conversation(agent_2(Caller(names=["a", "b"]), delete), ["a", "b"], named)
