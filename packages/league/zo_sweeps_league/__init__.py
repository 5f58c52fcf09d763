"""Members of the axes that the methods of further papers consist of: what the league compares beyond our own grids."""
