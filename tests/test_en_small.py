"""The model in the package: what it may take, that it is what the package's recipe made, and that it learned English."""

import json
import pickle
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import elmofire
from elmofire import Embedder, LanguageModel, load_weights
from elmofire.analysis.usages import find_usage, nearest, same_sense, usage_vectors
from elmofire.cli.demo import USAGES
from elmofire.recipe import build
from elmofire.train.recipes import find_recipe
from elmofire.train.settings import Recipe

FOLDER = Path(elmofire.__file__).parent / "models/en-small"
LOG = Path(__file__).parents[1] / "benchmarks/results/en_small_training.jsonl"
TEXT = [
    "The town lies on the left bank of the river, a few miles above its mouth.",
    "In 1905 he was elected a member of the Academy of Sciences.",
    "She did not answer, but looked out of the window at the falling snow.",
    "Most of the inhabitants are farmers, and grow rice, maize and sweet potatoes.",
    "The film was released in the United States in the spring of the following year.",
    "He opened the letter with trembling hands and read it twice.",
]


@pytest.fixture(scope="module")
def weights():
    return load_weights("en-small")


@pytest.fixture(scope="module")
def lm(weights):
    return LanguageModel(weights, device="cpu")


def test_it_takes_no_more_room_than_it_may():
    assert {file.name for file in FOLDER.iterdir()} == {"README.md", "config.json", "model.safetensors", "vocab.txt"}
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 29_000_000


def test_it_is_what_the_recipe_in_the_package_made_to_its_end(weights):
    recipe = find_recipe("en-small", [])
    assert build(Recipe, tomllib.loads(weights.training["recipe"])) == recipe
    assert weights.training["update"] == recipe.train.updates
    assert weights.config.head == len(weights.vocabulary) == 100_000


def test_it_is_of_the_run_whose_log_is_kept(weights):
    if not LOG.exists():
        pytest.skip(f"{LOG.name} is not beside these tests")
    *_, last = (row for row in map(json.loads, LOG.read_text().splitlines()) if row["kind"] == "evaluation")
    assert last["update"] == weights.training["update"]
    assert last["mean"] == pytest.approx(weights.training["held_out"]["mean"], rel=1e-12)


def test_it_is_the_default_and_loads_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None; import elmofire; "
        "print(elmofire.Embedder.load(device='cpu').embed(['Stick to the plan.'], layers='all')[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(3, 5, 256)\n", "")


def test_words_in_their_order_are_far_likelier_than_in_another(lm):
    sentences = [[token.text for token in lm.embedder.tokenize(text)] for text in TEXT]
    shuffled = [random.Random(number).sample(sentence, len(sentence)) for number, sentence in enumerate(sentences)]
    found = lm.perplexity(sentences)
    assert max(found.forward, found.backward) < 100
    assert lm.perplexity(shuffled).mean > 10 * found.mean


def test_a_usage_is_nearest_to_one_of_the_same_sense_more_often_than_by_chance(lm):
    met = np.zeros(3)
    for marked in USAGES.values():
        usages = [find_usage(sentence, sense, lm.embedder.tokenize) for sense, sentence in marked]
        vectors = usage_vectors(lm.embedder, usages)
        met += [same_sense(nearest(layer), [usage.sense for usage in usages]) for layer in vectors]
    assert met[0] == pytest.approx(4.8)  # of 18, where all usages of a word are alike
    assert min(met[1:]) >= 12


def test_what_stands_on_both_sides_tells_what_is_missing(lm):
    found = {item.word for item in lm.substitutes("They walked along the *___* of the river.", top=10)}
    assert {"bank", "banks", "side"} <= found


@pytest.mark.parametrize(("precision", "most"), [("int16", 5e-3), ("int8", 6e-2)])
def test_coarser_arithmetic_gives_nearly_the_same_vectors(weights, precision, most):
    exact = np.concatenate(Embedder(weights, device="cpu").embed(TEXT, layers="all"), axis=1)
    coarse = np.concatenate(Embedder(weights, device="cpu", precision=precision).embed(TEXT, layers="all"), axis=1)
    errors = np.linalg.norm(coarse - exact, axis=2) / np.linalg.norm(exact, axis=2)
    assert errors.mean(axis=1).max() <= most


def test_it_is_known_by_its_name_also_after_pickling(tmp_path, monkeypatch):
    elmo = Embedder.load("en-small", device="cpu")
    assert elmo.info()["model"] == "en-small"
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickle.dumps(elmo))
    assert again.info()["model"] == "en-small"
    np.testing.assert_array_equal(again.embed([["Why", "?"]])[0], elmo.embed([["Why", "?"]])[0])
