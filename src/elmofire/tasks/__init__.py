"""Task models over frozen biLM layers: what the vectors are worth to somebody who uses them."""
