"""The testing kit for the examples' tests."""

from __future__ import annotations

pytest_plugins = ["a2a_serverless_tools.testing.fixtures"]
