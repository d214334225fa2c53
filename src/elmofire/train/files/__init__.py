"""What a training run leaves on disk: checkpoints, its best model, a log, TensorBoard events and a plot."""
