"""Running agents. An agent imports all its names from here."""

from a2a_serverless.worker.context import (
    HistoryMessage,
    PreviousArtifact,
    TaskContext,
    Worker,
    current_context,
)
from a2a_serverless.worker.failures import FinalError, RetryLater
from a2a_serverless.worker.files import FileInfo
from a2a_serverless.worker.steps import Retry, StepError, TurnLeft

__all__ = [
    "FileInfo",
    "FinalError",
    "HistoryMessage",
    "PreviousArtifact",
    "Retry",
    "RetryLater",
    "StepError",
    "TaskContext",
    "TurnLeft",
    "Worker",
    "current_context",
]
