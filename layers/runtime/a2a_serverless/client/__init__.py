"""For clients: the official client of a2a-sdk, with calls that survive cut connections."""

from a2a_serverless.client.resuming import ResumingClient, create_resuming_client, resuming
from a2a_serverless.client.retries import GaveUpError, Retries
from a2a_serverless.client.uploads import upload

__all__ = [
    "GaveUpError",
    "ResumingClient",
    "Retries",
    "create_resuming_client",
    "resuming",
    "upload",
]
