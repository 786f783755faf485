"""LangGraph's agent server, with the runtime that keeps threads and runs in its memory.

`python -m benchmarks.peers.servers.langgraph FOLDER`. A thread of the runtime writes what is in
memory to files of the folder now and then, and the next start reads them.
"""

from __future__ import annotations

import os
import socket
import sys
from uuid import UUID, uuid5

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import push_message
from langgraph_api.cli import run_server

from benchmarks.peers.agent import work

NAME = "ticker"
ASSISTANTS = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which the server names the assistant of a graph."""
SLOTS = 10
"""The most runs at a time, as many as a `worker` of this project has turns."""


async def tick(state: MessagesState, config: RunnableConfig) -> dict[str, list[AIMessage]]:
    """Emit each chunk as a message of its own, then complete."""

    async def emit(text: str) -> None:
        push_message(AIMessage(text, id=f"{run_id}-{text.split(maxsplit=1)[0]}"))

    run_id, thread_id = (config["configurable"][name] for name in ("run_id", "thread_id"))
    asked = state["messages"][-1].text
    return {"messages": [AIMessage(await work(asked, f"{thread_id}:{run_id}", emit))]}


graph = StateGraph(MessagesState).add_node(tick).add_edge(START, "tick").add_edge("tick", END)


def main(folder: str) -> None:
    """Serve until a signal."""
    os.chdir(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"A2A at http://127.0.0.1:{port}/a2a/{uuid5(ASSISTANTS, NAME)},", flush=True)
    graphs = {NAME: "benchmarks.peers.servers.langgraph:graph"}
    variables = {
        "LANGGRAPH_NO_VERSION_CHECK": "true",
        "LANGSMITH_TRACING": "false",
        "LOG_LEVEL": "WARNING",
    }
    # The agent's notes are written in the event loop, in microseconds, as in every other system.
    run_server(
        port=port, graphs=graphs, n_jobs_per_worker=SLOTS, env=variables, allow_blocking=True
    )


if __name__ == "__main__":
    main(sys.argv[1])
