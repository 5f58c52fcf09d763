"""Objectives: one member per file; their formulas are in `zo_sweeps.engine.losses`."""
