"""Kinds of figure: one member per file."""
