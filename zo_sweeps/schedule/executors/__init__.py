"""The executors. One file each."""
