"""Boards that only dial out, as nodes of zo_sweeps: the agent on a board, and the gateway and leases on the head."""
