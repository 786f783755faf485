"""An executor of the official SDK that does what it is told; `dev` and the SDK's server run it."""

import asyncio
from pathlib import Path

from a2a.helpers import new_task
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Part, Role, TaskState

from a2a_serverless.tasks.questions import ID_FIELD, id_of_part

PICTURE = bytes(range(256)) * 4


class Said(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = context.message
        assert said is not None
        words = "".join(part.text for part in said.parts).split()
        files = [part for part in said.parts if part.HasField("raw") or part.HasField("url")]
        task_id, context_id = str(context.task_id), str(context.context_id)
        if words[:1] == ["message"]:
            reply = Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="without task")])
            await event_queue.enqueue_event(reply)
            return
        updater = TaskUpdater(event_queue, task_id, context_id)
        if context.current_task is None:
            opened = new_task(task_id, context_id, TaskState.TASK_STATE_SUBMITTED)
            opened.history.append(said)
            await event_queue.enqueue_event(opened)
        await updater.start_work(updater.new_agent_message([Part(text="thinking")]))
        match words:
            case ["ask"]:
                question = updater.new_agent_message([Part(text="Which city?")])
                await updater.requires_input(question)
                return
            case ["ask", "both"]:
                both = [_question("day"), _question("city")]
                await updater.requires_input(updater.new_agent_message(both))
                return
            case ["fail"]:
                await updater.failed(updater.new_agent_message([Part(text="No luck.")]))
                return
            case ["only", "words"]:
                await updater.complete(updater.new_agent_message([Part(text="All is said.")]))
                return
            case ["picture"]:
                parts = [Part(raw=PICTURE, filename="../../cat.png", media_type="image/png")]
                await updater.add_artifact(parts, artifact_id="picture")
            case ["wait", path]:
                while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - a file
                    await asyncio.sleep(0.02)
        told = [f"{part.filename} {len(part.raw)}" for part in files]
        told += [f"to {id_of_part(part)}" for part in said.parts if id_of_part(part)]
        text = f"you said: {' '.join([*words, *told])}"
        for chunk in (text[:5], text[5:]):
            parts = [Part(text=chunk)]
            await updater.add_artifact(parts, artifact_id="answer", append=chunk != text[:5])
        await updater.complete(updater.new_agent_message([Part(text="Done.")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, str(context.task_id), str(context.context_id)).cancel()


def _question(name: str) -> Part:
    part = Part(text=f"Which {name}?")
    part.metadata.update({ID_FIELD: name})
    return part


agent = Said()
