"""What a client reads of each form of answer: CLIENT URL FORM...

Prints one JSON line with its version, and one for each form and way of calling. Runs in the
client's own environment, so each function imports its client itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from tests.foreign.tried import printed, tried


async def python_1_3(url: str, text: str, *, streams: bool) -> str:
    """The official client, read by the SDK's helper."""
    import httpx
    from a2a.client import ClientConfig, create_client
    from a2a.helpers import get_stream_response_text, new_text_message
    from a2a.types import Role, SendMessageRequest

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        config = ClientConfig(httpx_client=http, streaming=streams)
        client = await create_client(url, client_config=config)
        request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
        answers = [answer async for answer in client.send_message(request)]
        return "".join(get_stream_response_text(answer) for answer in answers)


async def google_adk(url: str, text: str, *, streams: bool) -> str:
    """What a model reads of a remote agent that is its tool."""
    from tests.foreign.google_adk.stream import as_a_tool

    return await as_a_tool(url, text, streaming=streams)


async def trpc_agent(url: str, text: str) -> str:
    """What a model reads of a remote agent that is its tool."""
    from tests.foreign.trpc_agent.calling import as_a_tool

    return await as_a_tool(url, text)


async def agent_framework(url: str, text: str, *, streams: bool) -> str:
    import httpx
    from a2a.client import A2ACardResolver
    from agent_framework.a2a import A2AAgent

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        async with A2AAgent(agent_card=card) as agent:
            if streams:
                return "".join([update.text async for update in agent.run(text, stream=True)])
            return str((await agent.run(text)).text)


async def crewai(url: str, text: str, *, streams: bool) -> str:
    """What its delegation gives; where it does not stream, it polls."""
    os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
    from crewai.a2a.updates import PollingConfig
    from crewai.a2a.utils.delegation import aexecute_a2a_delegation

    card, more = f"{url}.well-known/agent-card.json", {"updates": PollingConfig(interval=0.2)}
    result = await aexecute_a2a_delegation(card, None, 60, text, **({} if streams else more))
    return str(result.get("result") or result.get("error") or "")


async def strands_client(url: str, text: str, *, streams: bool) -> str:
    from strands.agent.a2a_agent import A2AAgent

    agent = A2AAgent(endpoint=url)
    if not streams:
        return str(await agent.invoke_async(text)).strip()
    *_, last = [event async for event in agent.stream_async(text)]
    return str(last["result"]).strip()


async def ag2(url: str, text: str, *, streams: bool) -> str:
    """What an agent returns whose model is the remote agent."""
    from ag2 import Agent
    from ag2.a2a import A2AConfig

    return str((await Agent("remote", config=A2AConfig(url, streaming=streams)).ask(text)).body)


async def agno(url: str, text: str, *, streams: bool) -> str:
    from agno.agent import RemoteAgent

    agent = RemoteAgent(url, agent_id="remote", protocol="a2a", a2a_protocol="json-rpc")
    if not streams:
        return str((await agent.arun(text)).content or "")
    events = [event async for event in agent.arun(text, stream=True)]
    return "".join(str(getattr(event, "content", None) or "") for event in events)


async def beeai(url: str, text: str, *, streams: bool) -> str:
    from beeai_framework.adapters.a2a.agents import A2AAgent
    from beeai_framework.memory import UnconstrainedMemory

    agent = A2AAgent(url=url, memory=UnconstrainedMemory())
    return str((await agent.run(text, streaming=streams)).last_message.text)


async def fast_agent(url: str, text: str, *, streams: bool) -> str:
    from fast_agent.a2a.config import A2AAgentConfig
    from fast_agent.a2a.remote_agent import A2ARemoteAgent
    from fast_agent.agents.agent_types import AgentConfig

    agent = A2ARemoteAgent(AgentConfig("remote"), A2AAgentConfig(url, streaming=streams))
    await agent.initialize()
    try:
        return str(await agent.send(text))
    finally:
        await agent.shutdown()


async def litellm(url: str, text: str, *, streams: bool) -> str:
    """What it gives, as if a model had said it."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    from litellm import acompletion

    asked = {"model": "a2a/agent", "api_base": url, "stream": streams}
    answer = await acompletion(messages=[{"role": "user", "content": text}], **asked)
    if not streams:
        return str(answer.choices[0].message.content or "")
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


async def nemo(url: str, text: str, *, streams: bool) -> str:
    """What its function gives a model."""
    from nat.plugins.a2a.client.client_base import A2ABaseClient

    async with A2ABaseClient(url, streaming=streams) as client:
        events = [event async for event in client.send_message(text)]
        return str(client.extract_text_from_events(events))


async def langchain_adapters(url: str, text: str, *, streams: bool) -> str:
    """What its tool gives a model."""
    from a2a_langchain_adapters import A2ARunnable

    async with await A2ARunnable.from_agent_url(url) as remote:
        if streams:
            return "".join([event.text or "" async for event in remote.astream(text)])
        return str(await remote.as_tool().ainvoke({"query": text}))


async def langchain_remote(url: str, text: str, *, streams: bool) -> str:
    from langchain_remote_a2a_agent import RemoteAgent

    agent = RemoteAgent(name="remote", agent_card_url=f"{url}.well-known/agent-card.json")
    if not streams:
        return str((await agent.ainvoke(text))["messages"][-1].content)
    chunks = [chunk async for chunk in agent.astream(text)]
    return "".join(str(chunk["messages"][-1].content) for chunk in chunks)


async def astromesh(url: str, text: str, *, streams: bool) -> str:
    from astromesh_a2a import Policy, RemoteAgent
    from astromesh_a2a.testing import allow_loopback

    policy = Policy(allowed=("127.0.0.1",), allow_insecure_http=True)
    async with RemoteAgent(url, policy=policy) as remote:
        allow_loopback(remote)
        if not streams:
            result = await remote.send(text)
            return result.answer or result.pending or "".join(map(str, result.data))
        async with remote.stream(text) as events:
            given = [event.payload async for event in events]
        return "".join(one["text"] or "".join(map(str, one["data"])) for one in given)


async def ovos(url: str, text: str, *, streams: bool) -> str:
    """What OpenVoiceOS says."""
    from ovos_a2a_solver.engine import A2AChatEngine
    from ovos_plugin_manager.templates.agents import AgentMessage, MessageRole

    def said() -> str:
        engine = A2AChatEngine({"agent_url": url, "streaming": streams})
        messages = [AgentMessage(MessageRole.USER, text)]
        return "".join(engine.stream_tokens(messages, session_id=text))

    return await asyncio.to_thread(said)


async def novaos(url: str, text: str, *, streams: bool) -> str:
    """Artifacts, or else the status, as its pages read it."""
    from novaos_client_sdk.client import Client

    async with Client(url) as client:
        if not streams:
            return _of_novaos(await client.send_message(text))
        frames = [frame async for frame in client.send_streaming_message(text)]
    return "".join(_of_novaos(frame) for frame in frames)


def _of_novaos(answer: Any) -> str:
    if hasattr(answer, "artifact"):
        return str(answer.artifact.text)
    if not hasattr(answer, "status"):
        return str(answer.text)
    if texts := [artifact.text for artifact in getattr(answer, "artifacts", None) or ()]:
        return "".join(texts)
    return str(answer.status.message.text) if answer.status.message else ""


async def app_foundation(url: str, text: str) -> str:
    """What it gives once the task has ended."""
    from app_foundation.a2a.client import A2AClient
    from app_foundation.net.policy import OutboundEndpointPolicy

    policy = OutboundEndpointPolicy(allow_http=True, allow_private_networks=True)
    client = A2AClient(endpoint_policy=policy)
    card = await client.fetch_card(f"{url}.well-known/agent-card.json")
    task = await client.send_message(card, headers={}, text=text)
    while task.state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
        await asyncio.sleep(0.1)
        task = await client.get_task(card, headers={}, task_id=task.task_id)
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return "".join(str(part.text or part.data) for part in parts) + str(task.status_text)


async def a2a_handler(url: str, text: str, *, streams: bool) -> str:
    command = "stream" if streams else "send"
    return await printed("handler", "message", command, "--url", url, "--text", text)


async def conductor(url: str, text: str, *, streams: bool) -> str:
    command = ("stream",) if streams else ("send", "--quiet")
    return await printed("a2a", *command, "--agent", url, text)


Ways = Mapping[str, bool | None]
"""The names of ways of calling, and whether each streams; None: the client has one way alone."""


def both(name: str) -> Ways:
    """The ways of a client with an option `streaming`, which is its default."""
    return {name: True, f"{name}, streaming=False": False}


RUN: Final = {"run()": False, "run(stream=True)": True}
ENGINE: Final = {"engine": False, "engine, streaming: true": True}
SEND: Final = {"send_message": False, "send_streaming_message": True}
CLIENTS: Final[Mapping[str, tuple[str, str, Ways]]] = {
    "python_1_3": ("a2a-sdk", "a2a-sdk", {"streaming": True, "streaming=False": False}),
    "google_adk": ("Google ADK", "google-adk", both("AgentTool")),
    "agent_framework": ("agent-framework", "agent-framework-a2a", RUN),
    "crewai": ("CrewAI", "crewai", {"delegation": True, "delegation by polling": False}),
    "strands_client": ("Strands", "strands-agents", {"invoke_async": False, "stream_async": True}),
    "ag2": ("AG2", "ag2", both("ask")),
    "agno": ("Agno", "agno", {"arun": False, "arun, stream=True": True}),
    "beeai": ("BeeAI", "beeai-framework", both("run")),
    "fast_agent": ("fast-agent", "fast-agent-mcp", both("send")),
    "litellm": ("LiteLLM", "litellm", {"completion": False, "completion, stream=True": True}),
    "nemo": ("NVIDIA NeMo", "nvidia-nat-a2a", both("function")),
    "langchain_adapters": (
        *("a2a-langchain-adapters", "a2a-langchain-adapters"),
        {"as_tool": False, "astream": True},
    ),
    "langchain_remote": (
        *("langchain-remote-a2a-agent", "langchain-remote-a2a-agent"),
        {"ainvoke": False, "astream": True},
    ),
    "astromesh": ("astromesh-a2a", "astromesh-a2a", {"send": False, "stream": True}),
    "ovos": ("OpenVoiceOS", "ovos-a2a-solver-plugin", ENGINE),
    "novaos": ("NovaOS", "novaos-agent-sdk", SEND),
    "trpc_agent": ("tRPC-Agent", "trpc-agent-py", {"AgentTool": None}),
    "app_foundation": ("app-foundation", "app-foundation", {"get_task": None}),
    "a2a_handler": ("a2a-handler", "a2a-handler", {"send": False, "stream": True}),
    "conductor": ("Conductor", "conductor-a2a-cli", {"send --quiet": False, "stream": True}),
}
"""The name of each client, its package, and its ways of calling, by its folder."""


async def main(client: str, url: str, forms: list[str]) -> None:
    _, package, ways = CLIENTS[client]
    await tried("version", partial(asyncio.to_thread, version, package))
    for way, streams in ways.items():
        how = {} if streams is None else {"streams": streams}
        for form in forms:
            await tried(f"{way}|{form}", partial(globals()[client], url, form, **how))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
