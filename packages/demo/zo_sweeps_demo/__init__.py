"""A page to play with: choose a model, rows or a reward, and a method; watch the run; stop, resume and export it."""
