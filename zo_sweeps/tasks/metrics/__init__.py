"""Metrics: one member per file; scikit-learn and scipy are imported when a metric is computed."""
