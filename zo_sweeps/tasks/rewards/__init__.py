"""Rewards: one member per file."""
