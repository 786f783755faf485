#!/usr/bin/env bash
# langgraph 1.2.22 with langgraph-prebuilt 1.1.2, seen on 2026-11-29.
# A model calls a tool twice at once. The tool invokes a compiled graph of its own, which asks the user by interrupt().
# Each question has an id, and each answer is given to one id: one expects every call to go on with its own graph.
# Seen: the graphs below one node are told apart by the order in which they begin. Where the calls begin in another
# order when they are resumed, as threads may, each goes on with the state, the question and the answer of the other.
# The threads of this program wait for one another, which makes that order certain.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'langgraph==1.2.22' 'langgraph-prebuilt==1.1.2' 'langgraph-checkpoint==4.3.2' 'langchain-core==1.7.2'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import threading
from typing import TypedDict

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt


class Booking(TypedDict):
    name: str
    answer: str


def ask(state):
    return {"answer": interrupt(f"Which seat for {state['name']}?")}


booking = StateGraph(Booking).add_node("ask", ask).add_edge(START, "ask").compile()
first, over = "a", threading.Event()


@tool
def book(name: str) -> str:
    """Book a seat of the user's choice."""
    if name != first:
        assert over.wait(60)
    try:
        done = booking.invoke({"name": name})
    finally:
        over.set()
    return f"call of {name}: graph of {done['name']}, {done['answer']}"


tools = StateGraph(MessagesState).add_node("tools", ToolNode([book])).add_edge(START, "tools")
graph, config = tools.compile(InMemorySaver()), {"configurable": {"thread_id": "thread"}}
calls = [{"name": "book", "args": {"name": name}, "id": name} for name in ("a", "b")]
state = graph.invoke({"messages": [AIMessage("", tool_calls=calls)]}, config)
while questions := state.get("__interrupt__"):
    print(*(question.value for question in questions))
    first = "b"
    over.clear()
    answers = {question.id: f"answer to {question.value}" for question in questions}
    state = graph.invoke(Command(resume=answers), config)
print(*(message.content for message in state["messages"][1:]), sep="\n")
PROGRAM
) || { cat "$folder/log" >&2; echo "langgraph's graph runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
Which seat for a?
Which seat for b?
call of a: graph of b, answer to Which seat for b?
call of b: graph of a, answer to Which seat for a?
SEEN
)
[ "$seen" = "$expected" ] || { echo "langgraph gives the answers to other calls than it did. It says now: $seen" >&2; exit 1; }
