"""Projects of users: the files that they start from, their dependencies, their upgrades.

Only the commands use it; it is not part of the Lambda layer.
"""
