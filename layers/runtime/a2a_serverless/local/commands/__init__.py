"""The commands: a module each, so that each loads only what it needs.

`run(options)` does the work and returns the exit code. What cannot be used is a
`ConfigurationError`, which the command line prints as one sentence.
"""
