"""What a newcomer does with a project of `init`.

From the wheel alone: the project's own programs run, in its folder, and find nothing of this
repository. Its agent is one of `newcomers/`, whose model is on the loopback.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.commands import Running, kill, ran, running_program, until
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
PICTURE = bytes(range(256)) * 1000


@dataclass
class Newcomer:
    kind: str
    folder: Path
    """The project's, which need not be there yet."""
    wheels: Path

    def init(self, program: Path) -> None:
        made = ["init", self.folder.name, "--agent", self.kind, "--find-links", self.wheels]
        run([program, *made], cwd=self.folder.parent)

    def lives(self) -> None:
        """Do with the project what its README names as next steps, and what must not be lost."""
        with self.dev() as dev:
            assert self.answers(dev)
        with a_model() as url:
            self.takes_its_agent()
            self.misses_the_key()
            openai, gemini = f"OPENAI_BASE_URL={url}/v1", f"GOOGLE_GEMINI_BASE_URL={url}"
            keys = [f"{name}={KEY}" for name in ("OPENAI_API_KEY", "GOOGLE_API_KEY")]
            (self.folder / ".env").write_text("\n".join([openai, gemini, *keys, ""]))
            with self.dev() as dev:
                self.streams(dev)
                self.is_asked(dev)
                self.sends_a_picture(dev)
                task = self.is_killed(dev)
            self.goes_on(task)

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
            run(["make", "lock"], cwd=self.folder)

    @contextmanager
    def dev(self) -> Iterator[Running]:
        command = [str(self.folder / ".venv/bin/a2a-serverless"), "dev", "--port", "0"]
        output = self.folder / "dev.log"
        env = environment(A2A_RETRY_BASE_S="0.01", COLUMNS="80")
        with running_program(command, env=env, output=output, cwd=self.folder) as dev:
            assert dev.url
            yield dev

    def answers(self, dev: Running) -> str:
        """What the agent says to the first example of its card."""
        card = json.loads((self.folder / "functions/api/agent_card.json").read_text())
        return self.sends(dev, card["skills"][0]["examples"][0])

    def sends(self, dev: Running, text: str, *options: object, fails: bool = False) -> str:
        """What `send` prints of an answer to this; the agent may ask back."""
        command = [self.folder / ".venv/bin/a2a-serverless", "send", dev.url, text, *options]
        done = ran(command, timeout=LIMIT_S, cwd=self.folder, env=environment())
        assert done.returncode in ((1,) if fails else (0, 3)), (done, dev.said())
        return done.stdout

    def misses_the_key(self) -> None:
        """Start `dev`, and send a message if it starts: one of both names `.env`."""
        with suppress(AssertionError), self.dev() as dev:  # some need the key for their import
            self.sends(dev, "Hello", fails=True)
        said = (self.folder / "dev.log").read_text()
        what = "a key that its service takes" if self.kind == "adk" else "OPENAI_API_KEY"
        assert f"set {what}, on your machine in .env" in said, said

    def streams(self, dev: Running) -> None:
        """The model's answer comes in pieces, from the ADK in one at least."""
        events = [json.loads(line) for line in self.sends(dev, "Hello", "--json").splitlines()]
        pieces = [event for event in events if "artifactUpdate" in event]
        assert len(pieces) >= (1 if self.kind == "adk" else 2), events
        assert self.sends(dev, "Hello").strip() == "You have said: Hello."

    def is_asked(self, dev: Running) -> None:
        """A tool asks back, and is answered."""
        with Caller(dev.url) as caller:
            asked = caller.send("Delete the draft")
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", (asked, dev.said())
            if self.kind == "adk":  # an answer to a long-running call
                messages = [*asked.get("history", ()), asked["status"]["message"]]
                shown = [part for message in messages for part in message["parts"]]
                marked = [p for p in shown if p.get("metadata", {}).get("adk_is_long_running")]
                done = {name: marked[-1]["data"][name] for name in ("id", "name")}
                done["response"] = {"result": "It is deleted."}
                part = {"data": done, "metadata": {"adk_type": "function_response"}}
                ids = {"taskId": asked["id"], "contextId": asked["contextId"]}
                answer = caller.send(parts=[part], **ids)
                assert "It is deleted." in str(answer), (answer, dev.said())
                return
        assert "Delete the draft" in json.dumps(asked["status"])
        assert self.sends(dev, "yes", "--task", asked["id"]).strip() == "It is deleted."

    def sends_a_picture(self, dev: Running) -> None:
        """It comes to the model, and one comes back: byte for byte."""
        picture, out = self.folder.parent / "cat.png", self.folder.parent / "out"
        picture.write_bytes(PICTURE)
        said = self.sends(dev, "What is this?", "--file", picture, "--out", out)
        assert f"I see a picture of {len(PICTURE)} bytes." in said, said
        (drawing,) = out.iterdir()
        assert drawing.read_bytes() == PICTURE

    def is_killed(self, dev: Running) -> str:
        """Kill `dev` in the second of two steps; return the task."""
        steps = self.folder / "steps.txt"
        with Caller(dev.url) as caller:
            task: str = caller.send("Do the two steps", waits=False)["id"]
            until(lambda: steps.exists() and "second" in steps.read_text())
        kill(dev)
        return task

    def goes_on(self, task: str) -> None:
        """The next `dev` goes on behind the first step."""
        (self.folder / "go").touch()
        with self.dev() as dev, Caller(dev.url) as caller:
            ended = caller.until("TASK_STATE_(COMPLETED|FAILED)", task)
            assert "Both are done." in json.dumps(ended), (ended, dev.said())
        assert (self.folder / "steps.txt").read_text().split() == ["first", "second", "second"]
