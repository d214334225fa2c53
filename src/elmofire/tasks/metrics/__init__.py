"""Scores of tasks, and how sure one can be of their differences."""
