"""What a newcomer does with a project of `init`, with the seconds that each thing takes.

From the wheel alone: the project's own programs run, in its folder, and find nothing of this
repository. Its agent is one of `newcomers/`, whose model is on the loopback.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.commands import Running, running_program
from tests.e2e.installed import LIMIT_S, environment, run
from tests.support.a2a_calls import Caller
from tests.support.fake_model import KEY, a_model

AGENTS = Path(__file__).parent / "newcomers"
NEEDS = {
    "worker": "openai",
    "executor": "openai",
    "langgraph": "langchain-openai",
    "pydantic-ai": "pydantic-ai-slim[openai]",
    "strands": "strands-agents[openai]",
}
"""What a kind's agent imports beside what `init` has written; the others have their client."""
STREAMS = {"adk": 1}
"""How many pieces of an answer come at least; two where nothing is named."""
PICTURE = bytes(range(256)) * 1000


@dataclass
class Matrix:
    """Seconds, by what was done and for which kind of project."""

    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, row: str, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds.setdefault(row, {})[kind] = time.monotonic() - began

    def text(self) -> str:
        """A table of Markdown: what was done and checked, and the seconds of each kind."""
        kinds = list(dict.fromkeys(kind for each in self.seconds.values() for kind in each))
        lines = [["what", *kinds], ["---", *("---:" for _ in kinds)]]
        for row, each in self.seconds.items():
            lines.append([row, *(f"{each[k]:.1f}" if k in each else "" for k in kinds)])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass
class Newcomer:
    """One who makes a project of a kind."""

    kind: str
    folder: Path
    """The project's, which need not be there yet."""
    wheels: Path
    matrix: Matrix

    def init(self, program: Path) -> None:
        """Make the project."""
        made = ["init", self.folder.name, "--agent", self.kind, "--find-links", self.wheels]
        with self.timed("`init`"):
            run([program, *made], cwd=self.folder.parent)

    def make(self, program: Path) -> None:
        """Make the project, and install what it needs."""
        self.init(program)
        with self.timed("the first `make`: its environment"):
            run(["make", ".venv/.stamp"], cwd=self.folder)

    def timed(self, row: str) -> Any:
        return self.matrix.timed(row, self.kind)

    def lives(self) -> None:
        """Do with the project what its README names as next steps, and what must not be lost."""
        with self.timed("`dev`, and the card's first example answered"), self.dev() as dev:
            assert self.answers(dev)
        with a_model() as url:
            self.takes_its_agent()
            with self.timed("without the model's key: `.env` is named"):
                self.misses_the_key()
            openai, gemini = f"OPENAI_BASE_URL={url}/v1", f"GOOGLE_GEMINI_BASE_URL={url}"
            keys = [f"{name}={KEY}" for name in ("OPENAI_API_KEY", "GOOGLE_API_KEY")]
            (self.folder / ".env").write_text("\n".join([openai, gemini, *keys, ""]))
            with self.dev() as dev:
                with self.timed("a stream: the model's first answer"):
                    self.streams(dev)
                with self.timed("a tool asks back, and is answered"):
                    self.is_asked(dev)
                with self.timed("a picture to the model, and one back: byte for byte"):
                    self.sends_a_picture(dev)
            with self.timed("`dev` killed between two steps: the first is not run again"):
                self.kills()

    def takes_its_agent(self) -> None:
        """Write the agent, say in its card that it takes pictures, name its package, lock that."""
        worker = self.folder / "functions/worker"
        shutil.copy(AGENTS / f"{self.kind.replace('-', '_')}.py", worker / "agent.py")
        shutil.copy(AGENTS / "tools.py", worker / "tools.py")
        path = self.folder / "functions/api/agent_card.json"
        card = json.loads(path.read_text())
        card["defaultInputModes"] = ["text/plain", "image/png", "application/json"]
        path.write_text(json.dumps(card))
        if needs := NEEDS.get(self.kind):
            with (worker / "requirements.in").open("a") as requirements:
                requirements.write(f"{needs}\n")
            with self.timed("a package: a line, `make lock`"):
                run(["make", "lock"], cwd=self.folder)

    @contextmanager
    def dev(self) -> Iterator[Running]:
        """A running `dev` of the project."""
        command = [str(self.folder / ".venv/bin/a2a-serverless"), "dev", "--port", "0"]
        output = self.folder / "dev.log"
        env = environment(A2A_RETRY_BASE_S="0.01", COLUMNS="80")
        with running_program(command, env=env, output=output, cwd=self.folder) as dev:
            dev.wait_for(r"A2A at (\S+),")
            yield dev

    def answers(self, dev: Running) -> str:
        """What the agent says to the first example of its card."""
        card = json.loads((self.folder / "functions/api/agent_card.json").read_text())
        return self.sends(dev, card["skills"][0]["examples"][0])

    def sends(self, dev: Running, text: str, *options: object) -> str:
        """What `send` prints of an answer to this; the agent may ask back."""
        return self._send(dev, text, *options, codes={0, 3})

    def _send(self, dev: Running, text: str, *options: object, codes: set[int]) -> str:
        url = dev.wait_for(r"A2A at (\S+),")
        command = [self.folder / ".venv/bin/a2a-serverless", "send", url, text, *options]
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode in codes, (done, dev.said())
        return done.stdout

    def misses_the_key(self) -> None:
        """Start `dev`, and send a message if it starts: one of both names `.env`."""
        try:
            with self.dev() as dev:
                self._send(dev, "Hello", codes={1})
        except AssertionError:
            pass  # some libraries need the key to be imported: `dev` is refused
        said = (self.folder / "dev.log").read_text()
        what = "a key that its service takes" if self.kind == "adk" else "OPENAI_API_KEY"
        assert f"set {what}, on your machine in .env" in said, said

    def streams(self, dev: Running) -> None:
        lines = self.sends(dev, "Hello", "--json").splitlines()
        events = [json.loads(line) for line in lines]
        pieces = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        assert len(pieces) >= STREAMS.get(self.kind, 2), lines
        assert self.sends(dev, "Hello").strip() == "You have said: Hello."

    def is_asked(self, dev: Running) -> None:
        with Caller(dev.wait_for(r"A2A at (\S+),")) as caller:
            asked = caller.send("Delete the draft")
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", (asked, dev.said())
            if self.kind == "adk":
                part = _response(asked)
                parts = {"taskId": asked["id"], "contextId": asked["contextId"], "parts": [part]}
                said = {"messageId": "answer", "role": "ROLE_USER", **parts}
                answer = caller.http.post("/message:send", json={"message": said})
                assert "It is deleted." in answer.text, (answer.text, dev.said())
                return
            assert "Delete the draft" in json.dumps(asked["status"])
        assert self.sends(dev, "yes", "--task", asked["id"]).strip() == "It is deleted."

    def sends_a_picture(self, dev: Running) -> None:
        picture, out = self.folder.parent / "cat.png", self.folder.parent / "out"
        picture.write_bytes(PICTURE)
        said = self.sends(dev, "What is this?", "--file", picture, "--out", out)
        assert f"I see a picture of {len(PICTURE)} bytes." in said, said
        (drawing,) = out.iterdir()
        assert drawing.read_bytes() == PICTURE

    def kills(self) -> None:
        """Kill `dev` in the second step; the next one goes on behind the first."""
        steps = self.folder / "steps.txt"
        with self.dev() as dev, Caller(dev.wait_for(r"A2A at (\S+),")) as caller:
            task = caller.send("Do the two steps", waits=False)["id"]
            deadline = time.monotonic() + 60
            while not (steps.exists() and "second" in steps.read_text()):
                assert time.monotonic() < deadline, dev.said()
                time.sleep(0.02)
            dev.end(signal.SIGKILL)
        (self.folder / "go").touch()
        with self.dev() as dev, Caller(dev.wait_for(r"A2A at (\S+),")) as caller:
            ended = caller.until("TASK_STATE_(COMPLETED|FAILED)", task)
            assert "Both are done." in json.dumps(ended), (ended, dev.said())
        assert steps.read_text().split() == ["first", "second", "second"]


def _response(task: dict[str, Any]) -> dict[str, Any]:
    """The answer to a long-running call of the ADK."""
    shown = [p for m in [*task.get("history", ()), task["status"]["message"]] for p in m["parts"]]
    *_, call = (p["data"] for p in shown if p.get("metadata", {}).get("adk_is_long_running"))
    made = {"id": call["id"], "name": call["name"], "response": {"result": "It is deleted."}}
    return {"data": made, "metadata": {"adk_type": "function_response"}}
