"""Task kinds: one member per file."""
