"""The definitions a trial is made of: one typed dataclass per member of every axis. Standard library only."""
