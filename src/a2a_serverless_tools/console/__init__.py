"""What an operator sees and does from this machine, in a deployment, the emulators, or `dev`.

Nothing of it is deployed. It reads with the operator's own credentials, and changes something only
when it is told to.
"""
