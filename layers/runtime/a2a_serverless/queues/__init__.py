"""FIFO delivery: typed messages in groups, at least once, one of a group at a time."""
