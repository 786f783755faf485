from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.e2e.commands import environment, run, run_anew

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_demo_shows_a_streamed_and_a_resumed_task(tmp_path: Path) -> None:
    """`demo` exits 0 from any folder and without an AWS account, and shows both tasks whole.

    Into a pipe it writes no terminal codes, and no line is wider than a terminal.
    """
    variables = {"HOME": str(tmp_path), "AWS_PROFILE": "missing", "AGENT_CHUNK_DELAY_S": "0.02"}
    shown = run_anew("demo", env=environment(**variables), cwd=tmp_path)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    states = [line[11:26].strip() for line in lines if line[:9].endswith(" s")]
    assert states.count("completed") == 2
    assert states.count("input-required") == 1
    assert states.count("itinerary") >= 5
    assert "Afternoon: Time Out Market" in shown.stdout
    assert "as streamed in" in shown.stdout
    assert lines[-1].startswith("2 tasks completed")
    assert "\033" not in shown.stdout
    assert max(len(line) for line in lines if "agent" not in line) <= 100


def test_demo_of_an_own_agent(tmp_path: Path) -> None:
    """`demo` in a folder with an agent and its card runs that agent on the card's examples."""
    for name in ("agent.py", "agent_card.json"):
        shutil.copy(EXAMPLES / "questionnaire_worker" / name, tmp_path)
    card = json.loads((tmp_path / "agent_card.json").read_text())
    card["skills"][0]["examples"] = ["begin", "stop"]
    (tmp_path / "agent_card.json").write_text(json.dumps(card))

    shown = run("demo", cwd=tmp_path)

    lines = shown.stdout.splitlines()
    assert "agent.py:agent" in lines[1]
    assert "What is your name?" in shown.stdout
    assert shown.returncode == 1, "the second example is rejected, which is no good end"
    assert "is rejected instead of completed or input-required or auth-required" in shown.stderr
