"""`python -m a2a_serverless_tools.cli`."""

import sys

from a2a_serverless_tools.cli import main

sys.exit(main())
