"""Training over clients that keep their rows and exchange scalars, or weights."""
