"""Ray for zo_sweeps: the executor of machines and clusters, the head and its workers."""
