"""What the commands know of a sweep, typed: `--json` prints it whole, and the text is made of it."""
