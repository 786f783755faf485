"""The socket on which this machine's own programs reach an agent."""

from __future__ import annotations

import socket
from typing import Final

from a2a_serverless.errors import ConfigurationError

HOST: Final = "127.0.0.1"


def of_descriptor(descriptor: int) -> socket.socket:
    """Return a listening socket that another process has bound."""
    # macOS does not tell its protocol, without which asyncio sets no TCP_NODELAY: see `bind`.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)


def bind(port: int) -> socket.socket:
    """Return a socket that holds `port` of the loopback; 0 takes a free one.

    Raises:
        ConfigurationError: the port is taken.
    """
    # asyncio sets TCP_NODELAY only on connections of a socket that names its protocol.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
        bound.listen()  # otherwise Linux lets a second process bind the port as well
    except OSError as error:
        bound.close()
        way_out = "name another one with --port; 0 takes a free one"
        msg = f"Port {port} of {HOST} cannot be used ({error.strerror}): {way_out}."
        raise ConfigurationError(msg) from error
    return bound
