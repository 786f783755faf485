"""Agents of other frameworks behind a Worker: one module each, which imports that framework.

Each is an extra of this package: `a2a-serverless[langgraph]`.
"""
