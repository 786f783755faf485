"""The emulator with three changes; it runs on its own Python, and imports nothing of this package.

An event source of a FIFO queue hands over one batch at a time there, because a batch may hold
messages of several groups (`_sqs_esm_concurrency` of MiniStack 1.5.33). A batch of one message
holds those of one group, so that such a source here has the concurrency of its stack, as on AWS.

It asks IAM for `sqs:SendMessageBatch`, an action that AWS does not have: there the right to send
messages is that to send several, and so it is with deletes and visibilities.

It unpacks a function and its layer, 4000 files, for each process, and deletes them in the loop that
answers everyone, which may take a minute. Here all processes share what was unpacked once.

It ends when its standard input does: with the process that has started it, however that ends.
"""

import hashlib
import os
import signal
import sys
import tempfile
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

from ministack.app import main
from ministack.core import iam_actions, lambda_runtime
from ministack.services import lambda_svc

_serial = lambda_svc._sqs_esm_concurrency
_named = iam_actions._action_from_target


def concurrency(esm: dict[str, Any], function: Any, config: Any, queue: Any = None) -> int:
    """Return how many batches of a source are worked on at once."""
    scaling = esm.get("ScalingConfig") or {}
    if (
        "MaximumConcurrency" in scaling
    ):  # the text of a parameter would stop the polling of all sources
        scaling["MaximumConcurrency"] = int(scaling["MaximumConcurrency"])
    has_one = int(esm.get("BatchSize", 10)) == 1
    return int(_serial(esm, function, config, None if has_one else queue))


def action(headers: dict[str, str]) -> str | None:
    """Return the action of IAM that a request needs."""
    name: str | None = _named(headers)
    is_sqs = headers.get("x-amz-target", "").startswith("AmazonSQS.")
    return name.removesuffix("Batch") if name and is_sqs else name


class Shared(zipfile.ZipFile):
    """An archive that is unpacked once: each folder for it is a link to the first one's files."""

    lock = threading.Lock()

    def extractall(self, path: Any = None, *_: Any) -> None:
        """Make an empty folder a link to the archive's files."""
        content = repr([(each.filename, each.CRC) for each in self.infolist()])
        name = hashlib.sha256(content.encode()).hexdigest()
        whole = Path(tempfile.gettempdir(), "unpacked", name)
        with self.lock:
            if not whole.exists():
                super().extractall(whole.with_suffix(".new"))
                whole.with_suffix(".new").rename(whole)
        Path(path).rmdir()
        Path(path).symlink_to(whole)


def end_with_input() -> None:
    """Wait for the end of standard input, and then end this process."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


one_of_many = {"BatchSize": 1, "ScalingConfig": {"MaximumConcurrency": 5}}
if _serial(one_of_many, {}, {}, {"is_fifo": True}) != 1:
    sys.exit(
        "The emulator gives FIFO sources their concurrency: take `concurrency` out of launch.py."
    )
if _named({"x-amz-target": "AmazonSQS.SendMessageBatch"}) != "SendMessageBatch":
    sys.exit("The emulator asks IAM for what AWS asks: launch.py need not.")
lambda_svc._sqs_esm_concurrency = concurrency
iam_actions._action_from_target = action
lambda_runtime.zipfile = types.SimpleNamespace(**{**vars(zipfile), "ZipFile": Shared})
threading.Thread(target=end_with_input, daemon=True).start()
sys.exit(main())
