"""Contextual word vectors from bidirectional language models: ELMo, exact, on today's Python.

>>> from elmofire import Embedder
>>> elmo = Embedder.load("en-small")
>>> elmo.embed([["Stick", "to", "the", "plan"]])[0].shape
(4, 256)
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elmofire.embed.embedder import Embedder
    from elmofire.embed.job import embed_to_file
    from elmofire.embed.outputs import open_embeddings
    from elmofire.engine.state import State
    from elmofire.errors import DataError, ElmofireError, InputError, MissingExtra, ModelError, RecipeError
    from elmofire.formats import load_weights, save_weights
    from elmofire.formats.weights import Weights
    from elmofire.lm.language_model import LanguageModel
    from elmofire.model.bilm import BiLM
    from elmofire.model.elmo import Elmo
    from elmofire.model.mix import ScalarMix
    from elmofire.text.readers import read_sentences
    from elmofire.text.sentences import split_sentences
    from elmofire.train.corpus.prepare import prepare
    from elmofire.train.corpus.reader import Corpus
    from elmofire.train.finetune import finetune
    from elmofire.train.pretrain import pretrain

# Where each public name lives. They are imported when first used: neither numpy nor torch is loaded before.
_HOMES = {
    "Embedder": "elmofire.embed.embedder",
    "embed_to_file": "elmofire.embed.job",
    "open_embeddings": "elmofire.embed.outputs",
    "State": "elmofire.engine.state",
    "load_weights": "elmofire.formats",
    "save_weights": "elmofire.formats",
    "Weights": "elmofire.formats.weights",
    "LanguageModel": "elmofire.lm.language_model",
    "BiLM": "elmofire.model.bilm",
    "Elmo": "elmofire.model.elmo",
    "ScalarMix": "elmofire.model.mix",
    "read_sentences": "elmofire.text.readers",
    "split_sentences": "elmofire.text.sentences",
    "Corpus": "elmofire.train.corpus.reader",
    "prepare": "elmofire.train.corpus.prepare",
    "pretrain": "elmofire.train.pretrain",
    "finetune": "elmofire.train.finetune",
    "ElmofireError": "elmofire.errors",
    "ModelError": "elmofire.errors",
    "InputError": "elmofire.errors",
    "RecipeError": "elmofire.errors",
    "DataError": "elmofire.errors",
    "MissingExtra": "elmofire.errors",
}

_NEED_TORCH = ("BiLM", "Elmo", "ScalarMix")

if TYPE_CHECKING:
    __all__ = [
        "BiLM",
        "Corpus",
        "DataError",
        "Elmo",
        "ElmofireError",
        "Embedder",
        "InputError",
        "LanguageModel",
        "MissingExtra",
        "ModelError",
        "RecipeError",
        "ScalarMix",
        "State",
        "Weights",
        "embed_to_file",
        "finetune",
        "load_weights",
        "open_embeddings",
        "prepare",
        "pretrain",
        "read_sentences",
        "save_weights",
        "split_sentences",
    ]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "__all__":
        from importlib.util import find_spec

        # `from elmofire import *` fails where a single name cannot be had.
        return [name for name in _HOMES if name not in _NEED_TORCH or find_spec("torch")]
    raise AttributeError(f"module 'elmofire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
