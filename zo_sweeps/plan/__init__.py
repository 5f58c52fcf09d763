"""Planning: a grid -> its trials, their needs, and every problem with them. Launches nothing."""
