"""The contracts of a2akit over the engine, for embedders and tests; the engine uses none."""
