"""Batches become gradients and new parameters: forward.py (loss), stepper.py (one update), on flat parameters and their optimizer."""
