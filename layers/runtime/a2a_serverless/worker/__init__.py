"""Running agents. An agent imports all its names from here."""

from a2a_serverless.worker.context import TaskContext, Worker, current_context
from a2a_serverless.worker.failures import FinalError, RetryLater
from a2a_serverless.worker.files import FileInfo
from a2a_serverless.worker.steps import Retry, StepError
from a2a_serverless.worker.turn import HistoryMessage, PreviousArtifact

__all__ = [
    "FileInfo",
    "FinalError",
    "HistoryMessage",
    "PreviousArtifact",
    "Retry",
    "RetryLater",
    "StepError",
    "TaskContext",
    "Worker",
    "current_context",
]
