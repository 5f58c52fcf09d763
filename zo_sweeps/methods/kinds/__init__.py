"""Kinds of trial: one member per file."""
