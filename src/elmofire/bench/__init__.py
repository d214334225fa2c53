"""Measuring: contenders take turns on the same weights and sentences, and nothing is timed before its results are shown to be right."""
