"""Whether the backends are there, asked once at a start that a person watches."""

from __future__ import annotations

from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends

_NOBODY = "readiness"


async def check_backends(backends: Backends, settings: Settings) -> None:
    """Make sure that table and queues exist, by one cheap request each.

    Raises:
        ConfigurationError: one sentence that names what is missing.
    """
    try:
        await backends.storage.head(_NOBODY)
    except A2AServerlessError:
        raise
    except Exception as error:
        # Whatever the backend's library raises: the table is not to be had.
        msg = f"The table {settings.table} cannot be used: {error}"
        raise ConfigurationError(msg) from error
    await backends.broker.check()
    if backends.push is not None:
        await backends.push.queue.check()
