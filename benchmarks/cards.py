"""The card of an agent of the official SDK that a benchmark runs."""

from __future__ import annotations

from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill


def card_of(name: str, description: str, *, binding: str) -> AgentCard:
    """Return the card of an agent that streams over one protocol binding."""
    return AgentCard(
        name=name,
        description=description,
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url="http://127.0.0.1", protocol_binding=binding, protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id=name.lower(), name=name, description=description, tags=["benchmark"])
        ],
    )
