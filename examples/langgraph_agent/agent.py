"""A LangGraph graph: streamed tokens, a conversation that lasts, and a question before it deletes.

The model is a stand-in, so that it runs without a key. Put yours in `MODEL`, for example
`init_chat_model("PROVIDER:MODEL")`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from a2a_serverless.frameworks.conversation import is_consent
from a2a_serverless.frameworks.langgraph import LangGraphWorker


class StandIn(BaseChatModel):
    """Acts as a model would: says what it remembers, a word at a time."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Any]:
        said = [message.text for message in messages if isinstance(message, HumanMessage)]
        for word in f"You have said: {'; '.join(said)}.".split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return generate_from_stream(self._stream(messages))


MODEL: BaseChatModel = StandIn()


async def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
    """Answer the conversation so far with the model."""
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


def delete(state: MessagesState) -> dict[str, list[AnyMessage]]:
    """Ask first: the task waits here, and the node runs again with the answer."""
    approved = is_consent(interrupt(f"{state['messages'][-1].text}: are you sure?"))
    return {"messages": [AIMessage("It is deleted." if approved else "Nothing is deleted.")]}


def choose(state: MessagesState) -> str:
    """Return the node for the user's message."""
    return "delete" if "delete" in state["messages"][-1].text.lower() else "answer"


GRAPH = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_node("delete", delete)
    .add_conditional_edges(START, choose, ["answer", "delete"])
    .add_edge("answer", END)
    .add_edge("delete", END)
).compile()


agent = LangGraphWorker(GRAPH)
