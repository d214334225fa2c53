"""AllenNLP 2.10.1 reads the HDF5 files that elmofire writes, and gives the same vectors.

Run: python benchmarks/allennlp_parity.py FOLDER/bin/python, where FOLDER was made by benchmarks/peers/allennlp.sh
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from records import keep

from elmofire import Embedder, load_weights, save_weights
from elmofire.formats.config import BilmConfig, EncoderConfig, small

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models import lively

SENTENCES = [
    ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "."],
    ["Stick", "to", "the", "plan"],
    ["naïve", "日本語", "x" * 60, "", "<S>"],
    ["Why", "?"],
    [],
]

# Of the models that our files can hold, those that AllenNLP can read: with residuals, projections and tokens of 50 characters.
MODELS = {
    "small": small(),
    "odd sizes": BilmConfig(
        encoder=EncoderConfig(width=10, filters=((1, 3), (3, 9), (7, 5)), character_dim=7, highways=3),
        cells=33,
        projection=10,
    ),
    "one layer": BilmConfig(
        encoder=EncoderConfig(width=8, filters=((2, 20),), highways=1), cells=16, projection=8, layers=1
    ),
    "four layers, tight clips": BilmConfig(
        encoder=EncoderConfig(width=8, filters=((2, 20),), highways=1),
        cells=16,
        projection=8,
        layers=4,
        cell_clip=0.2,
        projection_clip=0.1,
    ),
    "tanh, cells as wide as the projection": BilmConfig(
        encoder=EncoderConfig(width=16, filters=((2, 20),), highways=1, activation="tanh"), cells=16, projection=16
    ),
    "bias that holds the forget gate's 1": small(forget_bias=0.0),
}

THEIRS = """
import json, sys
import numpy as np, torch
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids
folder, sentences = sys.argv[1], json.loads(sys.argv[2])
bilm = _ElmoBiLm(folder + "/options.json", folder + "/weights.hdf5").eval()
with torch.no_grad():
    output = bilm(batch_to_ids(sentences))
layers = torch.stack(output["activations"]).numpy()
np.savez(sys.argv[3], *[layers[:, b, : len(sentence) + 2] for b, sentence in enumerate(sentences)])
"""


def main(python: str) -> None:
    for name, config in MODELS.items():
        weights = lively(config, seed=11)
        with tempfile.TemporaryDirectory() as folder:
            # Through both formats: what AllenNLP reads has been native in between.
            save_weights(weights, Path(folder, "native"))
            save_weights(load_weights(Path(folder, "native")), Path(folder, "hdf5"), to="hdf5")
            ours = Embedder.load(Path(folder, "hdf5"), device="cpu").embed(SENTENCES, layers="all", boundaries=True)
            arguments = [str(Path(folder, "hdf5")), json.dumps(SENTENCES), str(Path(folder, "theirs.npz"))]
            subprocess.run([python, "-W", "ignore", "-c", THEIRS, *arguments], check=True)
            with np.load(Path(folder, "theirs.npz")) as stored:
                theirs = [stored[f"arr_{b}"] for b in range(len(SENTENCES))]
        error = max(float(np.abs(x - y).max()) for x, y in zip(ours, theirs, strict=True))
        excess = max(float((np.abs(x - y) - 1e-5 * np.abs(y)).max()) for x, y in zip(ours, theirs, strict=True))
        largest = max(float(np.abs(y).max()) for y in theirs)
        keep(
            "allennlp_parity",
            model=name,
            largest_difference=error,
            beyond_1e_5_relative=excess,
            largest_value=largest,
            holds=excess <= 2e-6,
        )
        if excess > 2e-6:
            sys.exit(f"{name}: AllenNLP's vectors differ by {error}")


if __name__ == "__main__":
    main(sys.argv[1])
