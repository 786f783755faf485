"""Running agents: an agent imports what it needs from here."""

from a2a_serverless.worker.context import (
    FileInfo,
    HistoryMessage,
    PreviousArtifact,
    TaskContext,
    Worker,
)
from a2a_serverless.worker.failures import FinalError

__all__ = [
    "FileInfo",
    "FinalError",
    "HistoryMessage",
    "PreviousArtifact",
    "TaskContext",
    "Worker",
]
