"""A way to a server that cuts connections, at bytes that a seed decides."""

from __future__ import annotations

import asyncio
import random
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LONGEST = 4000
"""Bytes of answers after which a connection is cut at the latest, as long as cuts are left."""


class CuttingProxy:
    """Passes connections on to `target`, a URL; `cuts` counts what it has cut, up to `most`."""

    def __init__(self, most: int, chance: random.Random) -> None:
        self.target = ""
        self.cuts = 0
        self._most = most
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        await self.listen()
        try:
            yield self
        finally:
            await self.refuse()

    async def listen(self) -> None:
        """Take connections, at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._open.add(writer)
        host, _, port = self.target.removeprefix("http://").partition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            self._close(writer)
            return
        asking = asyncio.create_task(self._ask(reader, up_writer))
        try:
            await self._answer(up_reader, writer)
        except OSError:
            pass
        finally:
            asking.cancel()
            up_writer.transport.abort()
            self._close(writer)

    def _close(self, writer: StreamWriter) -> None:
        self._open.discard(writer)
        # Some cuts look like an end, others like a lost connection.
        if self._chance.random() < 0.5:
            writer.close()
        else:
            writer.transport.abort()

    async def _ask(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        left = self._chance.randint(0, LONGEST)
        while piece := await reader.read(65536):
            if self.cuts < self._most and left <= len(piece):
                self.cuts += 1
                writer.write(piece[:left])
                await writer.drain()
                return
            left -= len(piece)
            writer.write(piece)
            await writer.drain()
