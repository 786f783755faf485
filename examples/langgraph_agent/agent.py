"""A LangGraph graph behind a Worker: streamed tokens, and the chat kept across tasks.

The model is LangChain's fake one, so that it runs without a key. Put yours in `MODEL`, for example
`init_chat_model("PROVIDER:MODEL")`; nothing else changes.
"""

from __future__ import annotations

import itertools
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    messages_from_dict,
    messages_to_dict,
)
from langgraph.graph import END, START, MessagesState, StateGraph

from a2a_serverless.worker import TaskContext, Worker

REPLIES = (
    "A queue takes work from one place to another, in order.",
    "It keeps what is not done yet, so that nothing is lost.",
)
MODEL: BaseChatModel = GenericFakeChatModel(
    messages=(AIMessage(content=reply) for reply in itertools.cycle(REPLIES))
)


async def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
    """Answer the chat so far with the model; the graph's only node."""
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


GRAPH = (
    StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").add_edge("answer", END)
).compile()


class Chat(Worker):
    """One turn of the graph per message; the chat belongs to the context, not to the task."""

    async def handle(self, ctx: TaskContext) -> None:
        """Stream the model's tokens as one artifact.

        The chat is stored in the same commit as the answer: a crash never keeps one without the
        other, and two tasks of a context cannot overwrite each other's chat.
        """
        chat: list[Any] = messages_from_dict(await ctx.load_context() or [])
        chat.append(HumanMessage(ctx.user_text))
        text = ""
        async for token, _ in GRAPH.astream({"messages": chat}, stream_mode="messages"):
            if isinstance(token, AIMessageChunk) and token.text:
                text += token.text
                await ctx.emit_text_artifact(token.text, append=True)
        chat.append(AIMessage(text))
        await ctx.update_context(messages_to_dict(chat))
        await ctx.respond(f"{len(chat)} messages in this conversation.")


agent = Chat()
