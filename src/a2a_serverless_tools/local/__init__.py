"""The stack on one machine: processes and threads do the work of AWS.

It is not part of the layer: only the command line and the tests use it.
"""
