"""Where trials run: what a host is (`probe`) and lacks (`doctor`), what a trial will need (`estimate`) and has used
(`peak_memory`, `energy`).
"""
