"""The kinds of trial. One file each."""
