"""A training run: the loop, what it leaves on disk, its evaluations, and the processes that share it."""
