#!/usr/bin/env bash
# google-adk 2.13.0, seen on 2026-11-29.
# A model may have nothing more to say: its answer is then one empty text. One expects the finish reason STOP, with
# which Gemini marks an ordinary end, to make no difference.
# Seen: with STOP, the agent's event has the error MODEL_RETURNED_NO_CONTENT; the same answer without a finish reason
# has no error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'google-adk==2.13.0' 'google-genai==2.34.0'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, FinishReason, Part


class Silent(BaseLlm):
    reason: FinishReason | None

    async def generate_content_async(self, llm_request, stream=False):
        nothing = Content(role="model", parts=[Part(text="")])
        yield LlmResponse(content=nothing, finish_reason=self.reason)


async def errors(reason):
    agent = LlmAgent(name="agent", model=Silent(model="silent", reason=reason))
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    hello = Content(role="user", parts=[Part(text="hello")])
    events = runner.run_async(user_id="user", session_id=session.id, new_message=hello)
    return [event.error_code async for event in events]


print("STOP:", asyncio.run(errors(FinishReason.STOP)))
print("no reason:", asyncio.run(errors(None)))
PROGRAM
) || { cat "$folder/log" >&2; echo "google-adk's agent runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
STOP: ['MODEL_RETURNED_NO_CONTENT']
no reason: [None]
SEEN
)
[ "$seen" = "$expected" ] || { echo "google-adk treats an empty answer otherwise than it did. It says now: $seen" >&2; exit 1; }
