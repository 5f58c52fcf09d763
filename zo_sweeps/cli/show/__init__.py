"""What the commands print, a module per command. Never changes a sweep."""
