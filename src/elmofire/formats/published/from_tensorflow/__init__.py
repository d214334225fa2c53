"""Checkpoints and TF-Hub modules, read without TensorFlow."""
