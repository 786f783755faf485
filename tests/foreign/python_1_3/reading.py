"""What the official client gives of an answer, read by the SDK's helper."""

from __future__ import annotations

from functools import partial

import httpx
from a2a.client import ClientConfig, create_client
from a2a.helpers import get_stream_response_text, new_text_message
from a2a.types import Role, SendMessageRequest

PACKAGE = "a2a-sdk"


async def read(url: str, text: str, *, streaming: bool) -> str:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        config = ClientConfig(httpx_client=http, streaming=streaming)
        client = await create_client(url, client_config=config)
        request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
        answers = [answer async for answer in client.send_message(request)]
        return "".join(get_stream_response_text(answer) for answer in answers)


READS = {
    "streaming": partial(read, streaming=True),
    "streaming=False": partial(read, streaming=False),
}
