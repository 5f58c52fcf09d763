"""The agent: this machine runs trials for a head that it reaches by HTTPS, and that cannot reach it.

Nothing here, nor in what it imports, needs Ray, MLflow or Hydra. torch is imported in the trials' processes only.
"""
