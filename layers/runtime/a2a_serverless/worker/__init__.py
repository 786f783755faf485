"""Running agents. An agent imports all its names from here."""

from a2a_serverless.worker.calls import Remote, Reply
from a2a_serverless.worker.context import (
    Callback,
    HistoryMessage,
    TaskContext,
    Worker,
    current_context,
)
from a2a_serverless.worker.failures import FinalError, RetryLater
from a2a_serverless.worker.files import FileInfo, PreviousArtifact
from a2a_serverless.worker.questions import Answer, WaitTimeoutError, WrongAnswerError
from a2a_serverless.worker.steps import Retry, StepError, TurnParked
from a2a_serverless.worker.waits import Posted

__all__ = [
    "Answer",
    "Callback",
    "FileInfo",
    "FinalError",
    "HistoryMessage",
    "Posted",
    "PreviousArtifact",
    "Remote",
    "Reply",
    "Retry",
    "RetryLater",
    "StepError",
    "TaskContext",
    "TurnParked",
    "WaitTimeoutError",
    "Worker",
    "WrongAnswerError",
    "current_context",
]
