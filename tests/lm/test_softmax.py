"""The softmax in blocks is the softmax, and takes the memory of a block."""

import tracemalloc

import numpy as np
import pytest
import torch
from models import DEVICES

from elmofire.lm import softmax, torch_softmax
from elmofire.lm.softmax import Softmax
from elmofire.lm.torch_softmax import TorchSoftmax


def head_on(device, weight, bias):
    return Softmax(weight, bias) if device == "cpu" else TorchSoftmax(weight, bias, torch.device("cpu"))


def drawn(rows, words, width, *, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    weight, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((words, width), (words,)))
    return (
        weight * np.float32(scale),
        bias,
        rng.standard_normal((rows, width), dtype=np.float32),
        rng.integers(words, size=rows),
    )


def by_definition(weight, bias, vectors, targets):
    logits = vectors.astype(np.float64) @ weight.astype(np.float64).T + bias
    logits -= logits.max(axis=1, keepdims=True)
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(len(targets)), targets]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("words_at_a_time", "logits_at_a_time"), [(1, 1), (3, 7), (10, 1000), (53, 53), (1000, 10**6)])
def test_the_size_of_the_blocks_does_not_matter(device, words_at_a_time, logits_at_a_time, monkeypatch):
    for module in (softmax, torch_softmax):
        monkeypatch.setattr(module, "WORDS_AT_A_TIME", words_at_a_time)
        monkeypatch.setattr(module, "LOGITS_AT_A_TIME", logits_at_a_time)
    weight, bias, vectors, targets = drawn(17, 53, 6)
    found = head_on(device, weight, bias).log_probabilities_of(vectors, targets)
    np.testing.assert_allclose(found, by_definition(weight, bias, vectors, targets), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_logits_of_any_size_give_probabilities(device, scale):
    weight, bias, vectors, targets = drawn(9, 20_000, 4, scale=scale)
    head = head_on(device, weight, bias)
    found = head.log_probabilities_of(vectors, targets)
    np.testing.assert_allclose(
        found, by_definition(weight, bias, vectors, targets), rtol=1e-5, atol=2e-6 + 1e-6 * scale
    )
    for vector, target, one in zip(vectors, targets, found, strict=True):
        every = head.log_probabilities(vector)
        assert np.exp(every).sum() == pytest.approx(1)
        assert every[target] == pytest.approx(one, rel=1e-5, abs=2e-6 + 1e-6 * scale)


@pytest.mark.parametrize("device", DEVICES)
def test_no_rows_have_no_probabilities(device):
    weight, bias, vectors, targets = drawn(0, 5, 3)
    assert head_on(device, weight, bias).log_probabilities_of(vectors, targets).shape == (0,)


def test_memory_grows_neither_with_the_vocabulary_nor_with_the_text():
    weight, bias, vectors, targets = drawn(2000, 200_000, 8)  # all logits at once would take 1.6 GB
    head = Softmax(weight, bias)
    tracemalloc.start()
    try:
        head.log_probabilities_of(vectors, targets)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20
