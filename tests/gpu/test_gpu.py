"""The same vectors from a GPU: against the definition, with TF32 allowed around, and where its memory runs out."""

import numpy as np
import pytest
import torch
from models import lively, tiny

from elmofire import Elmo, Embedder
from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.formats.config import small
from elmofire.model import torch_engine
from elmofire.model.bilm import BiLM

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")]

SENTENCES = [["the", "cat", "sat", "on", "a", "mat"], ["unseen", "日本語"], [], ["a"] * 30]


@pytest.mark.parametrize(
    "config",
    [
        tiny(),
        tiny(directions=("backward",)),
        tiny(layers=1),
        tiny(cells=6, lstm_projection=False),
        tiny(cell_clip=None, projection_clip=0.2),
    ],
    ids=["plain", "backward only", "one layer", "no projection", "one clip"],
)
def test_layers_equal_the_definition(config):
    weights = lively(config, seed=3)
    elmo = Embedder(weights, device="cuda")
    assert elmo.info()["engine"] == "torch (triton)"
    for found, sentence in zip(elmo.embed(SENTENCES, layers="all", boundaries=True), SENTENCES, strict=True):
        ids = token_ids(["<S>", *sentence, "</S>"], config, None, weights.alphabet)
        expected, _ = definition.layers(config, weights.arrays, ids)
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=2e-6)


def test_auto_finds_the_gpu_and_agrees_with_the_cpu_engine():
    weights = lively(small(), seed=1)
    gpu, cpu = Embedder(weights), Embedder(weights, device="cpu")
    assert (gpu.info()["engine"], cpu.info()["engine"][:6]) == ("torch (triton)", cpu._engine.name[:6])
    torch.set_float32_matmul_precision("high")  # what training scripts do: it must not reach the vectors
    try:
        found = [*gpu.embed(SENTENCES, layers="all"), *gpu.embed(SENTENCES[:1], layers="all")]  # alone: as a graph
    finally:
        torch.set_float32_matmul_precision("highest")
    for x, y in zip(found, cpu.embed([*SENTENCES, SENTENCES[0]], layers="all"), strict=True):
        assert (np.linalg.norm(x - y, axis=-1) <= 5e-6 * np.linalg.norm(y, axis=-1)).all()


def test_the_state_is_carried():
    weights = lively(tiny())
    gpu, cpu = Embedder(weights, device="cuda"), Embedder(weights, device="cpu")
    states = [gpu.zero_state(), cpu.zero_state()]
    for batch in (SENTENCES, SENTENCES[:2], SENTENCES):
        results = [elmo.embed(batch, layers="top", state=state) for elmo, state in zip((gpu, cpu), states, strict=True)]
        states = [state for _, state in results]
        for x, y in zip(results[0][0], results[1][0], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_full_gpu_halves_the_batches_and_goes_on(monkeypatch):
    weights = lively(small(), seed=1)
    sentences = [[f"w{n}"] * 60 for n in range(256)]
    expected = Embedder(weights, device="cpu").embed(sentences[:2] + sentences[-2:])
    elmo = Embedder(weights, device="cuda")
    elmo.batch_tokens = 256 * 62
    monkeypatch.setattr(
        torch_engine, "_WINDOW_ROWS", 1 << 30
    )  # all steps at once, so that the pool's size is what counts
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (120 << 20)) / total)
    try:
        found = elmo.embed(sentences)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert elmo.batch_tokens < 256 * 62
    for x, y in zip(found[:2] + found[-2:], expected, strict=True):
        assert (np.linalg.norm(x - y, axis=-1) <= 5e-6 * np.linalg.norm(y, axis=-1)).all()


def test_the_memory_of_a_long_line_is_that_of_a_window():
    weights = lively(small(), seed=1)
    line = [f"w{n % 997}" for n in range(60_000)]
    elmo = Embedder(weights, device="cuda")
    elmo.embed([line[:100]])
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    [found] = elmo.embed([line])
    assert torch.cuda.max_memory_allocated() - before < 600 << 20  # its vectors alone, of all layers, would be 180 MB
    [expected] = Embedder(weights, device="cpu").embed([line])
    assert (np.linalg.norm(found - expected, axis=-1) <= 5e-6 * np.linalg.norm(expected, axis=-1)).all()


def test_the_layer_trains_there():
    elmo = Elmo(BiLM.from_weights(lively(tiny())), trainable=True, dropout=0.1).cuda()
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        output = elmo(SENTENCES)
        loss = (output.representations[0] - 1).square()[output.mask].mean() + elmo.penalty()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_scores_and_substitutes_equal_the_cpus():
    from elmofire import LanguageModel
    from elmofire.text.vocabulary import Vocabulary

    words = Vocabulary(["<S>", "</S>", "<UNK>", *[f"w{n}" for n in range(500)]])
    weights = lively(tiny(head=len(words)), vocabulary=words)
    sentences = [[f"w{n * 7 % 500}" for n in range(length)] for length in (1, 5, 40)]
    gpu, cpu = LanguageModel(weights, device="cuda"), LanguageModel(weights, device="cpu")
    for x, y in zip(gpu.score(sentences), cpu.score(sentences), strict=True):
        np.testing.assert_allclose(x.forward, y.forward, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(x.backward, y.backward, rtol=1e-4, atol=1e-4)
    assert gpu.perplexity(sentences, lanes=2).mean == pytest.approx(cpu.perplexity(sentences, lanes=2).mean, rel=1e-5)
    found, expected = (lm.substitutes(sentences[1], 2, top=5) for lm in (gpu, cpu))
    assert [filler.word for filler in found] == [filler.word for filler in expected]


def test_the_old_layer_runs_there_with_its_state(tmp_path):
    pytest.importorskip("h5py")
    from elmofire import save_weights
    from elmofire.compat.allennlp import Elmo as OldElmo
    from elmofire.compat.allennlp import batch_to_ids
    from elmofire.formats.config import BilmConfig, EncoderConfig

    config = BilmConfig(encoder=EncoderConfig(width=6, filters=((2, 9),), highways=1), cells=11, projection=6)
    save_weights(lively(config), tmp_path / "old", to="hdf5")
    files = (str(tmp_path / "old/options.json"), str(tmp_path / "old/weights.hdf5"))
    layers = [OldElmo(*files, 1, dropout=0.0, stateful=True).eval() for _ in range(2)]
    layers[0].cuda()
    for batch in (SENTENCES[:2], SENTENCES[3:], SENTENCES[:2]):
        found, expected = (layer(batch_to_ids(batch))["elmo_representations"][0] for layer in layers)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
