"""The extension by which a client puts a large file beside the messages that will name it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from a2a.types import Message, Part
from a2a.utils.errors import UnsupportedOperationError

from a2a_serverless.clock import now_s
from a2a_serverless.http.context import CallContext, base_url
from a2a_serverless.http.errors import RequestRefusedError, invalid_params
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import Link, header_type
from a2a_serverless.storage.leases import COPIES, Lease, Leases, Slots
from a2a_serverless.storage.leases import UPLOADS as SLOTS
from a2a_serverless.tasks.blobs import UPLOADS, Blob, BlobOwner, linked_blob
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.identity import is_unicode, new_incarnation
from a2a_serverless.wiring import Backends

_HOUR_S: Final = 3600
_ANYONE: Final = "anyone"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MOST_CHARACTERS: Final = 255


class Uploads:
    """Answers requests for an upload: where the bytes go, and the part that names them then.

    What is uploaded is of the caller's scope, and of no task: the commit of a message that names it
    copies it to its task, as it does with any link of ours.
    """

    def __init__(self, backends: Backends, settings: Settings) -> None:
        self._storage = backends.storage
        self._settings = settings
        table, clock = backends.storage.table, backends.storage.clock
        # Given back only if what they were taken for is refused: each counts for an hour.
        self._uploads, self._copies = (
            Leases(
                Slots(table, kind=kind, clock=clock),
                per_caller=settings.uploads_per_hour,
                in_all=0,
            )
            for kind in (SLOTS, COPIES)
        )

    async def answer(self, asked: Mapping[str, Any], context: CallContext) -> dict[str, Any]:
        """Return a link for one file, once its caller may have another one.

        Raises:
            UnsupportedOperationError: there is no store, or it takes no uploads.
            InvalidParamsError: a field is missing or wrong.
            RequestRefusedError: the caller had its uploads of an hour.
        """
        blobs, settings = self._storage.table.blobs, self._settings
        if blobs is None or not settings.upload_bytes:
            raise UnsupportedOperationError(
                message="The agent takes no uploads: send a file itself, or a URL of it."
            )
        self._check(asked)
        context.check_may_open()
        await self._count(1, self._uploads, context)
        owner = BlobOwner(context.scope.digest, UPLOADS, new_incarnation())
        blob = Blob(owner, asked["sha256"], asked["size"])
        link = Link(
            media_type=asked.get("mediaType", ""),
            filename=asked.get("filename", ""),
            seconds=settings.link_s,
            base_url=base_url(context.request, settings),
        )
        until_s = now_s(self._storage.clock) + link.seconds
        upload = await blobs.upload(blob, link)
        part = Part(
            url=upload.url.partition("?")[0],
            media_type=header_type(link.media_type),
            filename=link.filename,
        )
        return {
            "method": "PUT",
            "url": upload.url,
            "headers": dict(upload.headers),
            "expiresAt": datetime.fromtimestamp(until_s, UTC).isoformat().replace("+00:00", "Z"),
            "part": json_of(part),
        }

    def _check(self, asked: Mapping[str, Any]) -> None:
        size, most = asked.get("size"), self._settings.upload_bytes
        problems = []
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
            problems.append(("size", f"The bytes of the file, a whole number from 1 to {most}."))
        digest = asked.get("sha256")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            problems.append(("sha256", "SHA-256 of the file, in 64 hexadecimal digits of 0-9 a-f."))
        media_type = asked.get("mediaType", "")
        if not _is_short(media_type) or header_type(media_type or "a/b") != (media_type or "a/b"):
            problems.append(("mediaType", f"ASCII of at most {_MOST_CHARACTERS} characters."))
        if not _is_short(asked.get("filename", "")):
            problems.append(("filename", f"Text of at most {_MOST_CHARACTERS} characters."))
        if problems:
            sentences = " ".join(f"{name}: {problem}" for name, problem in problems)
            raise invalid_params(f"The file cannot be uploaded. {sentences}", *problems)

    async def count_copies(self, message: Message, context: CallContext) -> list[Lease]:
        """Count the files of its caller that the commit of a message copies to its task.

        Return what `give_back` takes if the message is refused, or was accepted before.

        Raises:
            RequestRefusedError: the caller had its copies of an hour.
        """
        named = {blob.key: blob for part in message.parts if (blob := linked_blob(part.url))}
        scope, own = context.scope.digest, message.task_id
        copied = [
            blob.key
            for blob in named.values()
            if blob.owner.scope == scope and blob.owner.task_id != own
        ]
        most = self._settings.uploads_per_hour
        if 0 < most < len(copied):
            raise invalid_params(
                f"A message may name {most} uploads, and this one names {len(copied)}: send several"
                " messages."
            )
        return await self._count(len(copied), self._copies, context)

    async def give_back(self, copies: list[Lease]) -> None:
        """Count copies no more: none was made."""
        await asyncio.gather(*map(self._copies.give_back, copies))

    async def _count(self, number: int, quota: Leases, context: CallContext) -> list[Lease]:
        """Take some of the caller's files of an hour, all or none, in whichever tenant it acts."""
        caller, taken, most = context.user_name or _ANYONE, [], self._settings.uploads_per_hour
        for _ in range(number):
            lease = await quota.take(caller, for_s=_HOUR_S)
            if lease is None:
                break
            taken.append(lease)
        if len(taken) == number:
            return taken
        await asyncio.gather(*map(quota.give_back, taken))
        does = "asked for" if quota is self._uploads else "named in messages"
        raise RequestRefusedError(
            "TooManyUploads",
            429,
            f"You have {does} {most} uploads within an hour; each counts for an hour.",
            {"Retry-After": "60"},
        )


def _is_short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _MOST_CHARACTERS and is_unicode(text)
