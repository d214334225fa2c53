"""From raw text to a trained biLM: `corpus` and `archive` prepare the text, and need no torch."""
