"""The emulator, with one change; it runs on the emulator's own Python, and imports nothing of ours.

An event source of a FIFO queue hands over one batch at a time there, because a batch may hold
messages of several groups (`_sqs_esm_concurrency` of MiniStack 1.5.33). A batch of one message holds
those of one group, so that here such a source has the concurrency that its stack gives it, as on AWS.

It ends when its standard input does: with the process that has started it, however that ends.
"""

import os
import signal
import sys
import threading
from typing import Any

from ministack.app import main
from ministack.services import lambda_svc

_serial = lambda_svc._sqs_esm_concurrency


def concurrency(esm: dict[str, Any], function: Any, config: Any, queue: Any = None) -> int:
    """Return how many batches of a source are worked on at once."""
    scaling = esm.get("ScalingConfig") or {}
    if "MaximumConcurrency" in scaling:  # the text of a parameter would stop the polling of all sources
        scaling["MaximumConcurrency"] = int(scaling["MaximumConcurrency"])
    has_one = int(esm.get("BatchSize", 10)) == 1
    return int(_serial(esm, function, config, None if has_one else queue))


def end_with_input() -> None:
    """Wait for the end of standard input, and then end this process."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


lambda_svc._sqs_esm_concurrency = concurrency
threading.Thread(target=end_with_input, daemon=True).start()
sys.exit(main())
