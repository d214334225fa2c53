"""The files that others published models in. Each module reads one family into `Weights`; none imports torch or TensorFlow."""
