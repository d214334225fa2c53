"""What packed weights look like is known from the config alone, so that nothing in a file need be believed about it."""

import pytest
from models import ONE_HOT, lively, one_way, tiny, words_only

from elmofire.engine.compiled import kernels_for, library, packing
from elmofire.text.vocabulary import Vocabulary

CONFIGS = {
    "odd sizes": tiny(),
    "whole vectors": tiny(cells=64, projection=32, encoder_width=32),
    "no projections": tiny(cells=15, projection=15, lstm_projection=False, encoder_projection=False, encoder_width=15),
    "one direction": tiny(directions=("forward",)),
    "large alphabet": tiny(encoder_characters=30_000, encoder_alphabet="code points"),
    "words": words_only(9),
    "plain layer for a highway": one_way(encoder_highway="mlp"),
    "learned carry gates, one-hot": one_way(encoder_highway="learned", **ONE_HOT),
}


@pytest.mark.parametrize("precision", packing.PRECISIONS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("instruction_set", library.available())
def test_forms_are_those_of_the_packed_arrays(instruction_set, config, precision, monkeypatch):
    monkeypatch.setattr(packing, "_MOST_TABLE_BYTES", 1 << 22)
    kernels = kernels_for(instruction_set)
    found = packing.pack(lively(config, vocabulary=Vocabulary(map(str, range(9)))), kernels, precision)
    assert {name: (array.dtype, array.shape) for name, array in found} == packing.forms(config, kernels, precision)
