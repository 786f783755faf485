"""Blobs in a bucket of S3."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, Final

from a2a_serverless.aws import ERRORS, call, client, error_code, repeat
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, InvalidArgumentError
from a2a_serverless.storage.blobs import (
    CHANGED,
    CHUNK_BYTES,
    KEYS_A_PAGE,
    Blobs,
    Link,
    Upload,
    disposition,
    header_type,
)
from a2a_serverless.tasks.blobs import Blob, BlobOwner

_MISSING: Final = frozenset({"NoSuchKey", "404", "InvalidRange"})
_CHANGED: Final = frozenset({"BadDigest", "XAmzContentSHA256Mismatch"})


class S3Blobs(Blobs):
    """Blobs as objects of one bucket; its lifecycle rule removes those of expired tasks.

    A link is signed with the credentials of its process, and ends with them: botocore renews
    temporary ones 10 minutes before their end, and links live for less.
    """

    def __init__(self, bucket: str, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._client = client("s3")

    async def put(self, blob: Blob, content: bytes | BinaryIO, media_type: str) -> None:
        def put() -> None:
            if not isinstance(content, bytes):
                content.seek(0)
            # S3 checks size and digest itself, and stores nothing that has arrived damaged.
            self._client.put_object(
                Bucket=self._bucket,
                Key=blob.key,
                Body=content,
                ContentLength=blob.size,
                ContentType=header_type(media_type),
                ChecksumSHA256=_checksum(blob),
            )

        await self._asked(put)

    async def copy(self, source: Blob, blob: Blob) -> bool:
        copy = partial(
            self._client.copy_object,
            Bucket=self._bucket,
            Key=blob.key,
            CopySource={"Bucket": self._bucket, "Key": source.key},
        )
        return await self._asked(copy) is not None

    async def get(self, blob: Blob) -> bytes | None:
        content: bytes | None = await self._asked(partial(self._read, blob))
        return content

    async def chunks(self, blob: Blob, start: int = 0) -> AsyncIterator[bytes]:
        for first in range(start, blob.size, CHUNK_BYTES):
            last = min(first + CHUNK_BYTES, blob.size) - 1
            chunk = await self._asked(partial(self._read, blob, Range=f"bytes={first}-{last}"))
            if chunk is None:
                return
            yield chunk

    async def link(self, blob: Blob, link: Link) -> str:
        fixed = {
            "ResponseContentType": header_type(link.media_type),
            "ResponseContentDisposition": disposition(link.filename),
        }
        return await self._signed("get_object", blob, link, fixed)

    async def upload(self, blob: Blob, link: Link) -> Upload:
        media_type, checksum = header_type(link.media_type), _checksum(blob)
        # The link outlives the upload: a second one must not replace what tasks may refer to by
        # then.
        fixed = {
            "ContentLength": blob.size,
            "ContentType": media_type,
            "ChecksumSHA256": checksum,
            "IfNoneMatch": "*",
        }
        headers = {
            "Content-Type": media_type,
            "If-None-Match": "*",
            "x-amz-checksum-sha256": checksum,
        }
        return Upload(await self._signed("put_object", blob, link, fixed), headers)

    async def _signed(self, method: str, blob: Blob, link: Link, fixed: Mapping[str, Any]) -> str:
        # In a thread: credentials may have to be renewed.
        url: str = await call(
            self._client.generate_presigned_url,
            ClientMethod=method,
            Params={"Bucket": self._bucket, "Key": blob.key, **fixed},
            ExpiresIn=link.seconds,
        )
        return url

    async def delete(self, owner: BlobOwner) -> int:
        deleted = 0
        while found := await self.keys(owner.prefix):
            deletion = {"Objects": [{"Key": key} for key in found], "Quiet": True}
            answer = await self._asked(
                partial(self._client.delete_objects, Bucket=self._bucket, Delete=deletion)
            )
            for refused in (answer or {}).get("Errors", ()):
                raise ConfigurationError(self._refused(str(refused.get("Code"))))
            deleted += len(found)
        return deleted

    async def keys(self, start: str, after: str = "", limit: int = KEYS_A_PAGE) -> list[str]:
        wanted = {"Bucket": self._bucket, "Prefix": start, "MaxKeys": limit}
        wanted |= {"StartAfter": after} if after else {}
        page = await self._asked(partial(self._client.list_objects_v2, **wanted))
        return [each["Key"] for each in (page or {}).get("Contents", ())]

    def _read(self, blob: Blob, **options: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=blob.key, **options)
        content: bytes = answer["Body"].read()
        return content

    async def _asked(self, request: Callable[[], Any]) -> Any:
        """Return the answer to a request, repeated if need be; None: there is no such object."""
        try:
            return await repeat(request, clock=self._clock)
        except ERRORS as error:
            if error_code(error) in _MISSING:
                return None
            if error_code(error) in _CHANGED:
                raise InvalidArgumentError(CHANGED) from error
            raise ConfigurationError(self._refused(error_code(error))) from error

    def _refused(self, code: str) -> str:
        return (
            f"The bucket {self._bucket} refuses a request: {code}; check its name (A2A_BLOBS)"
            " and what the role may do."
        )


def _checksum(blob: Blob) -> str:
    return base64.b64encode(bytes.fromhex(blob.digest)).decode()
