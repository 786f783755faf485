#!/usr/bin/env bash
# openai-agents 0.24.0 with openai 3.54.0, seen on 2026-11-29.
# A model of the Chat Completions API stops at its limit of tokens, in the midst of its text: finish_reason is "length".
# One expects the stream to end with the event response.incomplete, or the run with an error.
# Seen: the events are those of a whole answer. No event and no field of the result says that the text was cut.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'openai-agents==0.24.0' 'openai==3.54.0' 'httpx2==2.16.2'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx2
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
CHOICES = [
    {"delta": {"role": "assistant", "content": "The first half"}, "finish_reason": None},
    {"delta": {}, "finish_reason": "length"},
]


def model(request):
    chunk = {"id": "answer", "object": "chat.completion.chunk", "created": 0, "model": "model"}
    chunks = [json.dumps({**chunk, "choices": [{"index": 0, **each}]}) for each in CHOICES]
    lines = "".join(f"data: {each}\n\n" for each in [*chunks, "[DONE]"])
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=lines)


async def main():
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(model))
    client = AsyncOpenAI(api_key="none", base_url="http://model.invalid", http_client=http)
    run = Runner.run_streamed(Agent(name="agent", model=OpenAIChatCompletionsModel("model", client)), "hello")
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type.startswith("response.c"):
            if hasattr(event.data, "response"):
                response = event.data.response
                print(event.data.type, response.status, response.incomplete_details)
    print(run.final_output)


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "openai-agents' stream runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
response.created None None
response.completed None None
The first half
SEEN
)
[ "$seen" = "$expected" ] || { echo "openai-agents treats a cut text otherwise than it did. It says now: $seen" >&2; exit 1; }
