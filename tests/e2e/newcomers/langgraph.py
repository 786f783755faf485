"""A graph of LangGraph, as it is."""

from __future__ import annotations

from typing import Any

import tools
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from a2a_serverless.frameworks.conversation import is_consent


@tool
def delete(what: str) -> str:
    """Delete something, once the user has approved it."""
    approved = is_consent(interrupt({"question": f"{what}: are you sure?", "what": what}))
    return "It is deleted." if approved else "Nothing is deleted."


TOOLS = [delete, tool(tools.draw), tool(tools.first), tool(tools.second)]
model = ChatOpenAI(model="fake").bind_tools(TOOLS)


async def answer(state: MessagesState) -> dict[str, Any]:
    """Ask the model."""
    return {"messages": [await model.ainvoke(state["messages"])]}


agent = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_node("tools", ToolNode(TOOLS))
    .add_edge(START, "answer")
    .add_conditional_edges("answer", tools_condition)
    .add_edge("tools", "answer")
    .compile()
)
