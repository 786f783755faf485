"""What an operator sees and does from this machine: of a deployment, the emulators, or `dev`.

Nothing of it is deployed. It reads with the operator's own credentials, and changes nothing without
being told to.
"""
