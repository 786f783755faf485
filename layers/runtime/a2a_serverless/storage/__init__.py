"""Storage of tasks: the contract, its shared part, and the backends."""
