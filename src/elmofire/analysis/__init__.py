"""What the vectors know: probes of layers and words, beside plain baselines."""
