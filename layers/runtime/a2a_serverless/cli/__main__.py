"""`python -m a2a_serverless.cli`."""

import sys

from a2a_serverless.cli import main

sys.exit(main())
