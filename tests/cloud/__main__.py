"""`python -m tests.cloud`: see program.py, whose imports Ctrl-C ends without a traceback."""

import os
import signal
import sys

# Before the imports, which take a second: nothing has been started that would have to be ended.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from tests.cloud.program import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
