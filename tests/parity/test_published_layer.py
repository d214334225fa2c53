"""The `Elmo` layer against AllenNLP 2.10.1's, with and without layer norm and boundaries."""

import json

import h5py
import numpy as np
import pytest
import torch
from models import FIXTURES, needs_shared

from elmofire import Elmo


@needs_shared
@pytest.mark.parametrize("keep_boundaries", [False, True])
@pytest.mark.parametrize("layer_norm", [None, "allennlp"])
def test_two_mixes_of_the_published_model(layer_norm, keep_boundaries):
    described = json.loads((FIXTURES / "elmo_layer.json").read_text())
    elmo = Elmo.load(
        FIXTURES / "allennlp", representations=2, dropout=0.0, layer_norm=layer_norm, keep_boundaries=keep_boundaries
    )
    with torch.no_grad():
        for mix, published in zip(elmo.mixes, described["mixes"], strict=True):
            mix.weights.copy_(torch.tensor(published["scalar_parameters"]))
            mix.gamma.fill_(published["gamma"])
        output = elmo(described["sentences"])
    with h5py.File(FIXTURES / "elmo_layer.hdf5") as file:
        expected = file[f"layer_norm_{int(layer_norm is not None)}/keep_boundaries_{int(keep_boundaries)}"]
        np.testing.assert_array_equal(output.mask.numpy(), expected["mask"][()].astype(bool))
        for k in range(2):
            np.testing.assert_allclose(
                output.representations[k].numpy(), expected[f"representation_{k}"][()], rtol=1e-5, atol=2e-6
            )
