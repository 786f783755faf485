"""A durable task runtime for A2A (Agent2Agent protocol) agents on AWS."""

__version__ = "0.3.0"
