"""Trackers of a sweep: MLflow, Weights & Biases, TensorBoard."""
