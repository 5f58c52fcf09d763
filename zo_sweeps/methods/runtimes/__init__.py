"""Runtimes: one member per file."""
