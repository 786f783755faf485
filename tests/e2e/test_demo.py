from __future__ import annotations

from pathlib import Path

from tests.e2e.commands import environment, run_anew


def test_demo_shows_a_streamed_and_a_resumed_task(tmp_path: Path) -> None:
    """`demo` exits 0 from any folder and without an AWS account, and shows both tasks whole.

    Into a pipe it writes no terminal codes, and no line is wider than a terminal.
    """
    shown = run_anew(
        "demo", env=environment(HOME=str(tmp_path), AWS_PROFILE="missing"), cwd=tmp_path
    )

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
    assert max(map(len, lines)) <= 100
