"""Short ways to the protocol's objects."""

import uuid

from a2a import types

from a2a_serverless_tools.contract import ArtifactWrite


def message(text: str = "hello", *, message_id: str | None = None) -> types.Message:
    own, parts = message_id or uuid.uuid4().hex, [types.Part(text=text)]
    return types.Message(message_id=own, role=types.Role.ROLE_USER, parts=parts)


def agent_message(text: str) -> types.Message:
    own, parts = uuid.uuid4().hex, [types.Part(text=text)]
    return types.Message(message_id=own, role=types.Role.ROLE_AGENT, parts=parts)


def request(text: str = "hello", *, message_id: str | None = None) -> types.SendMessageRequest:
    return types.SendMessageRequest(message=message(text, message_id=message_id))


def artifact(artifact_id: str, *texts: str) -> types.Artifact:
    return types.Artifact(artifact_id=artifact_id, parts=[types.Part(text=text) for text in texts])


def chunk(artifact_id: str, *texts: str) -> ArtifactWrite:
    """Text parts appended to an artifact."""
    return ArtifactWrite(artifact(artifact_id, *texts), append=True)


def texts(task: types.Task, artifact_id: str) -> list[str]:
    found = [a for a in task.artifacts if a.artifact_id == artifact_id]
    return [part.text for a in found for part in a.parts]


def said(task: types.Task) -> list[str]:
    return [part.text for m in task.history for part in m.parts]


def storyteller(
    *extensions: str, inputs: tuple[str, ...] = ("text/plain",), pushes: bool = False
) -> types.AgentCard:
    """The card of an agent that tells one story, and streams it."""
    own = [types.AgentExtension(uri=uri) for uri in extensions]
    does = types.AgentCapabilities(
        streaming=True, push_notifications=pushes or None, extensions=own
    )
    return types.AgentCard(
        name="Storyteller",
        description="Tells one story.",
        version="1.0.0",
        capabilities=does,
        default_input_modes=inputs,
        default_output_modes=["text/plain"],
        skills=[types.AgentSkill(id="tell", name="Tell", description="A story.", tags=["story"])],
    )
