"""What authors and operators of A2A agents run: command line, local stack, console, tests' kit."""
