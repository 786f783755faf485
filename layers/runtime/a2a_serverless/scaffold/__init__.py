"""Projects of users: the files that they start from, their dependencies, their upgrades.

It is used by the commands and is not in the Lambda layer.
"""
