"""What a model of the ADK reads of a remote agent that is its tool."""

from __future__ import annotations

from functools import partial

from tests.foreign.google_adk.operations import as_a_tool

PACKAGE = "google-adk"

READS = {
    "AgentTool": partial(as_a_tool, streaming=True),
    "AgentTool, streaming=False": partial(as_a_tool, streaming=False),
}
