"""How far the vectors are from those of the original implementations: numpy, the compiled kernels of every instruction set that this
machine runs, and the torch model.

Needs the published fixtures (ELMOFIRE_SHARED, or ../shared beside the checkout). Run: python benchmarks/exactness.py
"""

import json
import os
from pathlib import Path

import h5py
import numpy as np
from records import keep

from elmofire import Embedder, load_weights
from elmofire.engine import Engine
from elmofire.engine.compiled import library
from elmofire.model.torch_engine import TorchEngine
from elmofire.text.characters import character_ids

FIXTURES = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[2] / "shared")) / "fixtures"
MODELS = {
    "allennlp": ("allennlp/sentences.json", "expected_embeddings.hdf5"),
    "bilm-tf": ("bilm-tf/lm_embeddings_sentences.json", "bilm-tf/expected_embeddings.hdf5"),
}


class Largest:
    """The largest error, and the largest beyond 1e-5 of the expected value."""

    def __init__(self) -> None:
        self.error = self.excess = 0.0
        self.numbers = 0

    def see(self, found, expected) -> None:
        difference = np.abs(found - expected)
        self.numbers += difference.size
        self.error = max(self.error, float(difference.max(initial=0)))
        self.excess = max(self.excess, float((difference - 1e-5 * np.abs(expected)).max(initial=0)))


def embedder(path: Path, engine: str) -> Embedder:
    weights = load_weights(path)
    elmo = Embedder(weights, device="cpu")
    elmo._engine = TorchEngine(weights, "cpu") if engine == "torch" else Engine(weights, instruction_set=engine)
    return elmo


def measure(engine: str) -> None:
    for model, (sentences, expected) in MODELS.items():
        lanes = [[text.split() for text in lane] for lane in json.loads((FIXTURES / sentences).read_text())]
        elmo = embedder(FIXTURES / model, engine)
        stateless, carried, published = Largest(), Largest(), Largest()
        state = elmo.zero_state()
        with h5py.File(FIXTURES / expected) as file:
            for k, lane in enumerate(lanes):
                for i, vectors in enumerate(elmo.embed(lane, layers="all")):
                    stateless.see(vectors, file[f"stateless/{k}/{i}"][()])
            for i, batch in enumerate(zip(*lanes, strict=True)):
                vectors, state = elmo.embed(batch, layers="all", state=state)
                for k in range(3):
                    carried.see(vectors[k], file[f"carried/{k}/{i}"][()])
                    with h5py.File(FIXTURES / model / f"lm_embeddings_{k}.hdf5") as top:
                        published.see(vectors[k][2], np.concatenate(top[str(i)][()], axis=1))
        record(engine, f"{model} model, three layers, zero state", stateless)
        record(engine, f"{model} model, three layers, carried state", carried)
        record(engine, f"{model} model, published top-layer sets", published)
    elmo = embedder(FIXTURES / "allennlp", engine)
    tokens = Largest()
    with h5py.File(FIXTURES / "allennlp/elmo_token_embeddings.hdf5") as file:
        words = (FIXTURES / "allennlp/vocab_test.txt").read_text(encoding="utf-8").split("\n")
        tokens.see(elmo._engine.encode(character_ids(words)), file["embedding"][()])
    record(engine, "published token vectors", tokens)
    variants = Largest()
    texts = json.loads((FIXTURES / "variants/sentences.json").read_text())
    for folder in sorted(path for path in (FIXTURES / "variants").iterdir() if path.is_dir()):
        pair = (folder / "options.json", folder / "weights.hdf5")
        with h5py.File(folder / "expected.hdf5") as file:
            for i, vectors in enumerate(embedder(pair, engine).embed(texts, layers="all")):  # pyright: ignore[reportArgumentType]
                variants.see(vectors, file[str(i)][()])
    record(engine, "six variants of the architecture", variants)


def record(engine: str, case: str, largest: Largest) -> None:
    keep(
        "exactness",
        engine=f"c ({engine})" if engine in library.available() else engine,
        case=case,
        numbers=largest.numbers,
        largest_error=largest.error,
        beyond_1e_5_relative=largest.excess,
    )


if __name__ == "__main__":
    for name in ("numpy", *library.available(), "torch"):
        measure(name)
