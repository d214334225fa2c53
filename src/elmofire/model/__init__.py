"""The biLM in torch: for training, for GPUs, and as a layer of other models."""

try:
    import torch  # noqa: F401
except ImportError:
    from elmofire.errors import MissingExtra

    raise MissingExtra("training, a GPU, the Elmo layer, a tagger, a probe or AllenNLP's old API", "torch") from None
