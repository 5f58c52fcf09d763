"""What is measured of engine, precisions, GPUs and clusters, as ratios with a goal and a limit."""
