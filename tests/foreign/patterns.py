"""Run the agents of the page `patterns`, as they stand there, in an environment of theirs.

`python -m tests.foreign.patterns FOLDER AG2` prints the names of the checks that have passed, as
JSON. The model is a server on this machine that answers as OpenAI's does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import TestCase

from a2a.types import Task

from a2a_serverless.tasks.entries import Caller
from a2a_serverless.worker import services
from a2a_serverless.worker.agents import handler_of, load_agent, what_is
from a2a_serverless.worker.failures import own_lines
from tests.support import pages
from tests.support.messages import request
from tests.support.workers import S, artifact_texts, status_text
from tests.unit.frameworks.talks import Talk, answered, ends_at, waits

PAGE = pages.path("patterns")
WAIT_S = 60
WHOLE = {"CrewAI", "smolagents"}
"""What sends its answer in one piece."""
HIDES_STATUS = {"Agno"}
"""What does not tell with which HTTP status its model has answered."""
CLASSES = {
    "CrewAI": "Crew",
    "AutoGen": "AssistantAgent",
    "AG2": "Agent",
    "Agno": "Agent",
    "LlamaIndex": "FunctionAgent",
    "smolagents": "ToolCallingAgent",
}
"""The class of each framework whose object an author may name as the agent."""


def patterns() -> dict[str, str]:
    """The agents of the page by the titles of their chapters."""
    parts = [one.partition("```python\n") for one in PAGE.read_text("utf-8").split("\n## ")]
    return {text.partition("\n")[0]: code.partition("```")[0] for text, _, code in parts if code}


class Model(ThreadingHTTPServer):
    """OpenAI's chat completions: answers each request with `text`, or with a status."""

    daemon_threads = True
    text = "Hello there, you."
    status = HTTPStatus.OK

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        """The messages of each request, as JSON."""
        self.goes_on = threading.Event()
        """Held, a streamed answer stops before its last word."""
        self.goes_on.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(json.dumps(asked["messages"]))
        if self.server.status != HTTPStatus.OK:
            self._send({"error": {"message": "not today", "type": "away"}})
        elif asked.get("stream"):
            self._stream(asked["model"])
        else:
            self._send(_whole(asked, self.server.text))

    def _send(self, answer: dict[str, Any]) -> None:
        self._begin("application/json")
        self.wfile.write(json.dumps(answer).encode())

    def _stream(self, model: str) -> None:
        self._begin("text/event-stream")
        words = re.findall(r"\S+\s*", self.server.text)
        for number, word in enumerate(words, 1):
            if number == len(words):
                self.server.goes_on.wait(WAIT_S)
            self._event(model, {"role": "assistant", "content": word}, None)
        self._event(model, {}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, model: str, delta: dict[str, str], ends: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": ends}
        event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
        self.wfile.write(f"data: {json.dumps(event | {'choices': [choice]})}\n\n".encode())
        self.wfile.flush()

    def _begin(self, media_type: str) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Type", media_type)
        self.send_header("x-should-retry", "false")  # so that OpenAI's client does not wait
        self.end_headers()


def _whole(asked: dict[str, Any], text: str) -> dict[str, Any]:
    """An answer in one piece; an agent that answers by a tool (`final_answer`) gets its call."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if any(tool["function"]["name"] == "final_answer" for tool in asked.get("tools", ())):
        call = {"name": "final_answer", "arguments": json.dumps({"answer": text})}
        message["tool_calls"] = [{"id": "1", "type": "function", "function": call}]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    kind = {"id": "c", "object": "chat.completion", "created": 1, "model": asked["model"]}
    return kind | {"choices": [choice], "usage": usage}


class Pattern:
    """One agent of the page, and its model."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.model = Model()
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{self.model.server_port}/v1"
        os.environ["OPENAI_API_BASE"] = os.environ["OPENAI_BASE_URL"]
        os.environ["OPENAI_API_KEY"] = "sk-none"
        (folder / "agent.py").write_text(patterns()[name], encoding="utf-8")
        self._agent = load_agent(f"{folder}/agent.py:agent")
        self.module = handler_of(self._agent).__module__

    def talk(self, *, max_attempts: int = 1) -> Talk:
        return Talk(self._agent, max_attempts=max_attempts)


async def turn_of(pattern: Pattern) -> Task:
    """A task after its only attempt."""
    talk = pattern.talk()
    head = await talk.bench.send("go")
    await talk.bench.work()
    return await talk.bench.task(head)


async def text_goes_in_and_comes_out(pattern: Pattern) -> None:
    """The model gets the user's text, and the client the model's."""
    assert answered((await pattern.talk().say("One, please."))[1]) == "Hello there, you."
    assert "One, please." in pattern.model.asked[-1]


async def words_are_sent_as_they_come(pattern: Pattern) -> None:
    """Where the framework streams, a client reads the first words before the model has ended."""
    if pattern.name in WHOLE:
        return
    talk = pattern.talk()
    head = await talk.bench.send("go")
    pattern.model.goes_on.clear()
    work = asyncio.create_task(talk.bench.work())
    try:
        async with asyncio.timeout(WAIT_S):
            while "Hello" not in str(artifact_texts(await talk.bench.task(head))):
                assert not work.done(), await talk.bench.task(head)
                await asyncio.sleep(0.01)
    finally:
        pattern.model.goes_on.set()
    assert await work
    assert answered(await talk.bench.task(head)) == "Hello there, you."


async def a_conversation_is_kept_and_is_its_own(pattern: Pattern) -> None:
    """The model is told what was said before in this context, and nothing of another."""
    talk = pattern.talk()
    for text in ("My cat is Tom.", "Again."):
        answered((await talk.say(text))[1])
    told = pattern.model.asked[-1]
    order = ["My cat is Tom.", "Hello there, you.", "Again."]
    assert [told.count(each) for each in order] == [1, 1, 1], told
    assert sorted(order, key=told.index) == order, told
    scope = talk.bench.storage.scope
    await talk.bench.open(request("Who?"), context_id="other", caller=Caller(), scope=scope)
    assert await talk.bench.work()
    assert "Who?" in pattern.model.asked[-1]
    assert "Tom" not in pattern.model.asked[-1]


async def an_error_names_the_place(pattern: Pattern) -> None:
    """The attempt fails, and its exception has the line of agent.py."""
    pattern.model.status = HTTPStatus.BAD_REQUEST
    with TestCase().assertLogs("a2a_serverless.worker", "WARNING") as logged:
        task = await turn_of(pattern)
    assert task.status.state == S.TASK_STATE_FAILED, task.status
    (error, *_) = (each.exc_info[1] for each in logged.records if each.exc_info)
    led_to_it = [each for each, _ in services._chain(error, set())]
    assert "not today" in "".join(map(str, led_to_it)), led_to_it
    files = {Path(line.filename).name for each in led_to_it for line in own_lines(each)}
    assert "agent.py" in files, files


async def a_model_that_is_away_is_waited_for(pattern: Pattern) -> None:
    """A 429 uses up no attempt, where the framework tells it: the only one is still to come."""
    pattern.model.status = HTTPStatus.TOO_MANY_REQUESTS
    task = await turn_of(pattern)
    if pattern.name in HIDES_STATUS:
        assert task.status.state == S.TASK_STATE_FAILED, task.status
    else:
        waits(status_text(task), "HTTP 429")


async def a_recorded_answer_is_paid_for_once(pattern: Pattern) -> None:
    """Where the answer is a step, a turn that dies right behind it does not ask the model again."""
    if pattern.name not in WHOLE:
        return
    with ends_at(1, "after") as recorded:
        _, task = await pattern.talk(max_attempts=3).say("go")
    assert answered(task) == "Hello there, you."
    assert (len(recorded), len(pattern.model.asked)) == (1, 1), (recorded, pattern.model.asked)


async def the_object_itself_gets_its_line(pattern: Pattern) -> None:
    """An author who names it as the agent is told of this page."""
    cls = getattr(importlib.import_module(pattern.module), CLASSES[pattern.name])
    assert "`a2a-serverless docs patterns` has" in what_is(cls), what_is(cls)


CHECKS: tuple[Callable[[Pattern], Awaitable[None]], ...] = (
    *(text_goes_in_and_comes_out, words_are_sent_as_they_come),
    *(a_conversation_is_kept_and_is_its_own, an_error_names_the_place),
    *(a_model_that_is_away_is_waited_for, a_recorded_answer_is_paid_for_once),
    the_object_itself_gets_its_line,
)


async def main(folder: Path, name: str) -> None:
    for check in CHECKS:
        await check(Pattern(name, folder))
    print(json.dumps([check.__name__ for check in CHECKS]))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
