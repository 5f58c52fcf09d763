"""One trial, start to end, in this process."""
