"""DynamoDB Local and fauxqs as child processes.

Both come from npm (`make emulators`), into `tests/emulators` or the folder that `A2A_EMULATORS`
names. Each run starts empty on a free port and keeps everything in memory.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from a2a_serverless_tools.cloud.emulator import free_port

EMULATORS: Final = Path(__file__).parents[1] / "emulators"
EMULATORS_VARIABLE: Final = "A2A_EMULATORS"
REGION: Final = "us-east-1"
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 5.0

#: What an AWS client needs beside the endpoint; the emulators accept any key.
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": REGION,
}

_JAR: Final = Path("node_modules/amplify-dynamodb-simulator/emulator/DynamoDBLocal.jar")
_FAUXQS: Final = Path("node_modules/fauxqs/dist/app.js")


class EmulatorMissingError(Exception):
    """An emulator is not installed; the message names what to install."""


class EmulatorStartError(Exception):
    """An emulator was started and does not answer; the message holds its last output."""


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """A running emulator: its service (`dynamodb` or `sqs`), its URL and its process id."""

    service: str
    endpoint_url: str
    pid: int

    def environment(self) -> dict[str, str]:
        """Return the variables that lead boto3 and `--backend aws` to it."""
        return {f"AWS_ENDPOINT_URL_{self.service.upper()}": self.endpoint_url, **CREDENTIALS}

    def client(self, **config: Any) -> Any:
        """Return a boto3 client of it; `config` goes to `botocore.config.Config`."""
        own: dict[str, Any] = {"endpoint_url": self.endpoint_url, "config": Config(**config)}
        own |= {it.lower(): key for it, key in CREDENTIALS.items() if it != "AWS_DEFAULT_REGION"}
        return boto3.client(self.service, REGION, **own)

    def answers(self) -> bool:
        once = {"total_max_attempts": 1, "mode": "standard"}
        client = self.client(connect_timeout=1, read_timeout=5, retries=once)
        try:
            (client.list_tables if self.service == "dynamodb" else client.list_queues)()
        except (BotoCoreError, ClientError):
            return False
        return True


def missing() -> str | None:
    """Return one sentence that names what the emulators lack here; None when all is there."""
    try:
        _dynamodb_local_command()
        _fauxqs_command()
    except EmulatorMissingError as error:
        return str(error)
    return None


def dynamodb_local() -> AbstractContextManager[Emulator]:
    port = free_port()
    return _running("dynamodb", [*_dynamodb_local_command(), "-port", str(port)], port)


def fauxqs() -> AbstractContextManager[Emulator]:
    port = free_port()
    return _running("sqs", _fauxqs_command(), port, FAUXQS_PORT=str(port))


def _dynamodb_local_command() -> list[str]:
    java = _program("java", "Java 17 or later")
    archive = _file(_JAR, "DynamoDB Local")
    # A run is too short for what the second compiler and a parallel collector cost: half.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    libraries = f"-Djava.library.path={archive.parent / 'DynamoDBLocal_lib'}"
    return [java, *quick, libraries, "-jar", str(archive), "-inMemory", "-sharedDb"]


def _fauxqs_command() -> list[str]:
    node = _program("node", "Node.js 20 or later")
    module = _file(_FAUXQS, "fauxqs").resolve().as_uri()
    # Its own command logs every request.
    script = f"import {{ startFauxqs }} from '{module}'; await startFauxqs({{ logger: false }});"
    return [node, "--input-type=module", "--eval", script]


def _program(name: str, description: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise EmulatorMissingError(f"The emulators need {description}: there is no `{name}`.")
    return path


def _file(relative: Path, description: str) -> Path:
    path = Path(os.environ.get(EMULATORS_VARIABLE) or EMULATORS) / relative
    if not path.is_file():
        raise EmulatorMissingError(f"{description} is not installed: run `make emulators`.")
    return path.absolute()


@contextmanager
def _running(service: str, command: list[str], port: int, **variables: str) -> Iterator[Emulator]:
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        emulator = Emulator(service=service, endpoint_url=url, pid=process.pid)
        deadline = time.monotonic() + START_SECONDS
        try:
            while not emulator.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    said = output.read()[-2000:].decode(errors="replace").strip()
                    raise EmulatorStartError(f"{service} has not answered: {said}")
                time.sleep(0.05)
            yield emulator
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
