"""Objectives: one member per file; the functions that they compute are in `zo_sweeps.engine.losses`."""
