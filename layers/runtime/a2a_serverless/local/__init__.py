"""The stack on one machine: processes and threads do the work of AWS.

Not part of the layer: the command line and the tests use it.
"""
