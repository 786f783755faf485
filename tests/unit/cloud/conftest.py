"""The account whose answers a test scripts."""

from tests.unit.live.conftest import aws

__all__ = ["aws"]
