"""Models for tests: small odd ones, and weights lively enough that clips fire and layers differ."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from elmofire.bench.models import lively as lively  # the weights that benchmarks use too
from elmofire.embed.device import cuda_devices
from elmofire.engine.compiled import library
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.formats.weights import Weights

SHARED = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[2] / "shared"))
FIXTURES = SHARED / "fixtures"
OUR_FIXTURES = Path(__file__).parent / "fixtures"

needs_shared = pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"the published fixtures are not at {FIXTURES}")


def tiny(**changes) -> BilmConfig:
    """A model of odd sizes; `encoder_*` changes go to its encoder."""
    inner = {key.removeprefix("encoder_"): changes.pop(key) for key in list(changes) if key.startswith("encoder_")}
    encoder = EncoderConfig(
        **{
            "width": 6,
            "filters": ((1, 3), (2, 5), (4, 7)),
            "character_dim": 5,
            "max_characters": 13,
            "highways": 1,
            **inner,
        }
    )
    return BilmConfig(
        **{"encoder": encoder, "cells": 11, "projection": 6, "cell_clip": 3.0, "projection_clip": 3.0, **changes}
    )


def words_only(words: int, **changes) -> BilmConfig:
    """A model that takes whole words."""
    encoder = EncoderConfig(width=6, filters=(), projection=False, words=words, word_dim=6)
    return replace(tiny(**changes), encoder=encoder)


def one_way(**changes) -> BilmConfig:
    """A language model as Kim et al. (2016) had it: forward only, no projections, no clips, and a first layer wider than the others."""
    plain = {"directions": ("forward",), "lstm_projection": False, "skip_connections": False}
    unclipped = {"cell_clip": None, "projection_clip": None}
    encoder = {"encoder_width": 15, "encoder_projection": False, "encoder_activation": "tanh"}
    return tiny(**{**plain, **unclipped, **encoder, "cells": 6, "projection": 6, **changes})


ONE_HOT = {"encoder_one_hot": True, "encoder_character_dim": 261}


ENGINES = ["numpy", *library.available(), "torch", *(["cuda"] if cuda_devices() else [])]
DEVICES = ["cpu", "cpu:0"]  # the CPU engine, and torch, whose CPU is a device with a number


def embedder_on(engine: str, weights: Weights, **settings):
    """An Embedder whose model runs in numpy, on the compiled kernels of an instruction set, in torch on the CPU, or on a GPU."""
    from elmofire import Embedder

    if engine in ("torch", "cuda"):
        return Embedder(weights, device="cpu:0" if engine == "torch" else "cuda", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELMOFIRE_CPU", engine)
        return Embedder(weights, device="cpu", **settings)
