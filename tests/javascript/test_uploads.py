"""The code of the page `uploads`, as it stands there: clients in Python and JavaScript."""

import asyncio
import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from pydantic import SecretStr

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import WHOLE
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.support import pages
from tests.support.messages import storyteller
from tests.support.required import report_not_run

PAGE = pages.path("uploads")
KEY = "a-key-that-is-long-enough"
CONTENT = bytes(range(256)) * 20_000
CARD = storyteller(inputs=("text/plain", "application/pdf"))
CREDENTIALS = {"X-API-Key": KEY}
CALL = """
const [url, path, credentials] = process.argv.slice(2);
const file = new File([readFileSync(path)], "scan.pdf", { type: "application/pdf" });
console.log(JSON.stringify(await upload(url, JSON.parse(credentials), file)));
"""


def code(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def backends() -> Backends:
    return memory_backends(Settings())


@pytest.fixture
def url(backends: Backends) -> Iterator[str]:
    settings = Settings(auth="api-key", api_keys=SecretStr(f"alice={KEY}"))
    app = create_app(settings, backends, CARD)
    with HttpServer(app, bind(0), lifespan=False) as server:
        yield server.url


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "scan.pdf"
    path.write_bytes(CONTENT)
    return path


async def check(url: str, backends: Backends, parts: list[dict[str, Any]]) -> None:
    """A message with the part has the file."""
    message = {"messageId": "1", "role": "ROLE_USER", "parts": parts}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    headers = {**CREDENTIALS, "A2A-Version": "1.0"}
    async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
        sent = (await http.post(f"{url}/message:send", json=body)).json()
    storage = backends.storage.for_scope(Scope.of("", "alice"))
    task = await storage.load_task(sent["task"]["id"], inline=WHOLE)
    assert task is not None
    part = task.history[0].parts[-1]
    assert (part.raw, part.filename, part.media_type) == (CONTENT, "scan.pdf", "application/pdf")


async def test_python(url: str, backends: Backends, file: Path) -> None:
    """The message of the page, as the official client would send it."""
    source = "async def example(http, url):\n" + textwrap.indent(code("python"), "    ")
    names: dict[str, Any] = {}
    exec(f"{source}\n    return message", names)  # noqa: S102 - the page's own code
    async with httpx.AsyncClient(headers=CREDENTIALS, trust_env=False, timeout=60) as http:
        message = await names["example"](http, url)
    await check(url, backends, MessageToDict(message)["parts"])


async def test_javascript(url: str, backends: Backends, file: Path, tmp_path: Path) -> None:
    """The function of the page, in Node.js; what is refused is thrown with the agent's sentence."""
    node = shutil.which("node")
    if node is None:
        report_not_run("The page's JavaScript needs Node.js 20 or later.")
    script = tmp_path / "upload.mjs"
    script.write_text(f'import {{ readFileSync }} from "node:fs";\n{code("js")}{CALL}', "utf-8")

    async def told(path: Path) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            *(node, str(script), url, str(path), json.dumps(CREDENTIALS)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complaints = await process.communicate()
        return said.decode(), complaints.decode()

    said, complaints = await told(file)
    assert complaints == ""
    await check(url, backends, [json.loads(said)])
    empty = tmp_path / "empty"
    empty.touch()
    assert "a whole number from 1 to 100000000" in (await told(empty))[1]
