"""What a trial is made of: one typed definition a member of every axis. Standard library only."""
