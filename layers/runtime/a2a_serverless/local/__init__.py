"""The stack on one machine: what AWS does in production, done by processes and threads here.

Not part of the layer: the command line and the tests use it.
"""
