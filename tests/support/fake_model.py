"""A model on the loopback: OpenAI's chat completions, and Gemini's contents."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

KEY = "a-key-of-the-model"


@dataclass
class Heard:
    """A conversation, whichever service's form it has."""

    said: list[str] = field(default_factory=list)
    """What the user has said."""
    picture: bytes = b""
    result: str | None = None
    """What the last message returns, if that is a tool's."""


@dataclass
class Reply:
    """What a model answers: a text, or the call of a tool."""

    text: str = ""
    tool: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def reply(heard: Heard) -> Reply:
    """Act as a model would."""
    wish = heard.said[-1].lower()
    match heard.result, wish:
        case None, _ if "delete" in wish:
            return Reply(tool="delete", arguments={"what": heard.said[-1]})
        case None, _ if "two steps" in wish:
            return Reply(tool="first")
        case None, _ if heard.picture:
            return Reply(tool="draw")
        case "drawn", _:
            return Reply(f"I see a picture of {len(heard.picture)} bytes.")
        case "first is done", _:
            return Reply(tool="second")
        case None, _:
            return Reply(f"You have said: {'; '.join(heard.said)}.")
    return Reply(str(heard.result))


def of_openai(body: dict[str, Any]) -> Heard:
    heard = Heard()
    for message in body["messages"]:
        blocks: Any = message.get("content") or ""
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        text = " ".join(block["text"] for block in blocks if block["type"] == "text")
        for block in blocks:
            if block["type"] == "image_url":
                heard.picture = base64.b64decode(block["image_url"]["url"].partition(",")[2])
        if message["role"] == "user":
            heard.said.append(text)
        heard.result = text if message["role"] == "tool" else None
    return heard


def of_gemini(body: dict[str, Any]) -> Heard:
    heard = Heard()
    for content in body["contents"]:
        heard.result = None
        for part in content["parts"]:
            if "functionResponse" in part:
                heard.result = str(part["functionResponse"]["response"].get("result"))
            elif "inlineData" in part:
                heard.picture = base64.urlsafe_b64decode(part["inlineData"]["data"])
            elif content["role"] == "user":
                heard.said.append(part["text"])
    return heard


def to_openai(made: Reply, *, streams: bool) -> list[dict[str, Any]]:
    call = {"id": f"call-{made.tool}", "type": "function", "index": 0}
    call["function"] = {"name": made.tool, "arguments": json.dumps(made.arguments)}
    said = {"tool_calls": [call]} if made.tool else {"content": made.text}
    ends = {"index": 0, "finish_reason": "tool_calls" if made.tool else "stop"}
    known = {"id": "1", "created": 1, "model": "fake"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not streams:
        choice = {**ends, "message": {"role": "assistant", "content": None, **said}}
        return [{**known, "object": "chat.completion", "choices": [choice], "usage": usage}]
    words = [said] if made.tool else [{"content": f"{word} "} for word in made.text.split()]
    chunks = [{"index": 0, "delta": {"role": "assistant", **word}} for word in words]
    every = [[chunk] for chunk in chunks] + [[{**ends, "delta": {}}]]
    form = {**known, "object": "chat.completion.chunk"}
    return [{**form, "choices": one} for one in every] + [{**form, "choices": [], "usage": usage}]


def to_gemini(made: Reply) -> list[dict[str, Any]]:
    call = {"functionCall": {"name": made.tool, "args": made.arguments}}
    content = {"role": "model", "parts": [call if made.tool else {"text": made.text}]}
    return [{"candidates": [{"content": content, "finishReason": "STOP"}]}]


class Service(BaseHTTPRequestHandler):
    """Answers with `reply` whoever has the key."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = (self.headers.get("Authorization", ""), self.headers.get("x-goog-api-key", ""))
        if not {f"Bearer {KEY}", KEY} & {*given}:
            told = {"error": {"message": "Incorrect API key", "code": 401}}
            return self._answer([told], status=401, streams=False)
        if "/chat/completions" in self.path:
            streams = bool(body.get("stream"))
            return self._answer(to_openai(reply(of_openai(body)), streams=streams), streams=streams)
        streams = ":stream" in self.path
        return self._answer(to_gemini(reply(of_gemini(body))), streams=streams)

    def _answer(self, said: list[dict[str, Any]], *, streams: bool, status: int = 200) -> None:
        lines = [*(f"data: {json.dumps(one)}\n\n" for one in said), "data: [DONE]\n\n"]
        sent = ("".join(lines) if streams else json.dumps(said[0])).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def a_model() -> Iterator[str]:
    """The address of a running model."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()
