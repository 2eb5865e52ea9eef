"""One training loop, its optimiser, its processes and its checkpoints."""
