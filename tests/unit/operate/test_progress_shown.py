"""Progress where a person looks at a task: the command line, its JSON, the transcript of `demo`."""

from __future__ import annotations

import io
from typing import Any

from a2a.types import StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent

from a2a_serverless.tasks.entries import Entry, Restarted, StatusChanged
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.progress import Progress
from a2a_serverless_tools.cli.task_text import as_json
from a2a_serverless_tools.local.demo import _Transcript
from a2a_serverless_tools.operate.cost import Workers, cost_of
from a2a_serverless_tools.operate.view import facts, tree
from tests.support.heads import with_fields
from tests.support.messages import agent_message
from tests.unit.operate.timelines import timeline_of
from tests.unit.tasks.heads import opened

WORKING = TaskStatus(state=TaskState.TASK_STATE_WORKING)
BAR = "██████░░░░░░░░░░░░░░ 3 of 10"


def told(done: float) -> StatusChanged:
    return StatusChanged(WORKING, Progress.of(done, 10).metadata(), archive=True)


def records(*entries: Entry) -> list[Record]:
    return [Record(version=n, entries=(entry,)) for n, entry in enumerate(entries, 1)]


def test_the_command_line_shows_a_bar() -> None:
    """One of the open turn at the top, and one in each version that told it; never the text."""
    shown = timeline_of(opened(), records(told(1), told(3)))
    assert [fact.text for fact in facts(shown) if fact.name == "progress"] == [BAR]
    assert [line.text.endswith(f"status working, {BAR}") for line in tree(shown)].count(True) == 1


def test_only_what_counts_now_is_at_the_top() -> None:
    """A later status without progress, a restart, and the end of the turn leave none."""
    for last in (StatusChanged(WORKING), Restarted(1)):
        assert timeline_of(opened(), records(told(1), told(3), last)).progress is None
    over = with_fields(opened(), is_open=False)
    assert timeline_of(over, records(told(3))).progress is None


def test_programs_get_the_numbers() -> None:
    """In the JSON of the task, and of each change that told them."""

    def printed_of(*entries: Entry) -> dict[str, Any]:
        shown = timeline_of(opened(), records(*entries))
        return as_json(shown, cost_of(shown, Workers()))

    printed = printed_of(told(3), StatusChanged(WORKING))
    assert printed["progress"] is None
    assert printed["commits"][0]["changes"][0]["progress"] == {"done": 3, "total": 10}
    assert printed["commits"][1]["changes"][0]["progress"] is None
    assert printed_of(told(3))["progress"] == {"done": 3, "total": 10}


def test_the_transcript_of_a_stream_shows_a_bar() -> None:
    """`demo` prints it beside the state, before the text."""
    out = io.StringIO()
    status = TaskStatus(state=WORKING.state, message=agent_message("Page 3"))
    update = TaskStatusUpdateEvent(status=status, metadata=Progress.of(3, 10).metadata())
    _Transcript(out).event(StreamResponse(status_update=update))
    assert out.getvalue().endswith(f"{BAR}  Page 3\n")
    assert "working" in out.getvalue()
