"""Mistral: Llama's layers; a sliding window over the keys, which has no parameters."""

from zo_sweeps.models.families.llama import BOS_TOKEN, TARGETS, linear_shapes, parameter_count

__all__ = ["BOS_TOKEN", "TARGETS", "linear_shapes", "parameter_count"]
