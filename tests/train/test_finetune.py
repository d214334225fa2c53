"""`finetune`: every kind of model that has a head learns a domain, keeps what it is, and is never made worse."""

import math
import os
import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import FIXTURES, lively, needs_shared, tiny, words_only

from elmofire import LanguageModel, load_weights, pretrain, save_weights
from elmofire.errors import DataError, InputError, MissingExtra, ModelError, RecipeError
from elmofire.text.vocabulary import Vocabulary
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.reader import Corpus
from elmofire.train.files.log import read_log
from elmofire.train.finetune import finetune, perplexities
from elmofire.train.new_head import with_new_head
from elmofire.train.recipes import find_recipe

VOCABULARY = FIXTURES / "bilm-tf/train/vocab.txt"
WORDS = [
    "<S>",
    "</S>",
    "<UNK>",
    "of",
    "the",
    "neural",
    ".",
    "words",
    ",",
    "language",
    "models",
    "to",
    "a",
    "use",
    "larger",
]
QUICK = {
    "batch_tokens": 200,
    "rate": 0.02,
    "optimizer.warmup": 0,
    "precision": "float32",
    "log_every": 2,
    "evaluate_every": 99,
}
SIZES = {"cells": 12, "model.projection": 6, "encoder.width": 6, "filters": [[1, 4], [2, 6]], "max_characters": 12}


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Others would take longer to start than they have to do here."""
    monkeypatch.setattr("elmofire.engine.workers.usable_cores", lambda: 1)


def domain_lines(count: int, seed: int) -> list[str]:
    """Sentences of a pattern that no model here was trained on."""
    draw = random.Random(seed).choice
    words, things = ["the", "a", "larger", "neural"], ["models", "words", "language", "words of language"]
    return [f"{draw(words)} {draw(things)} use {draw(words)} {draw(things)} , {draw(things)} ." for _ in range(count)]


@pytest.fixture
def text(tmp_path):
    """The domain: text to train on, and text to be held out."""
    for name, count, seed in (("text.txt", 120, 1), ("held.txt", 30, 2)):
        (tmp_path / name).write_text("\n".join(domain_lines(count, seed)) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture
def model(tmp_path):
    """A native model with a head, never trained."""
    words = Vocabulary(WORDS)
    save_weights(replace(lively(tiny(head=len(words)), seed=3), vocabulary=words), tmp_path / "model")
    return tmp_path / "model"


def tuned(model, text, run, **options):
    """Options of `finetune`, and settings of the recipe."""
    options = {"held_out": text.with_name("held.txt"), "device": "cpu", **QUICK, **options}
    return finetune(model, [text], output=run, **options)


def arrays(what):
    weights = load_weights(what)
    return {name: weights.arrays[name] for name in weights.arrays}


def same(first, second):
    return list(first) == list(second) and all(np.array_equal(first[name], second[name]) for name in first)


def checkpoint(folder):
    return FIXTURES / "tf_checkpoint", str(VOCABULARY)


def hdf5(folder):
    save_weights(load_weights(FIXTURES / "tf_checkpoint", vocab=VOCABULARY), folder / "hdf5", to="hdf5")
    assert len(list((folder / "hdf5").glob("*.hdf5"))) == 2  # the head has a file of its own
    return folder / "hdf5", None


def native(folder):
    save_weights(load_weights(FIXTURES / "tf_checkpoint", vocab=VOCABULARY), folder / "native")
    return folder / "native", None


def run(folder):
    """A model of our own training, on other text."""
    (folder / "other.txt").write_text("of the neural words , language models .\nto use a larger neural net .\n" * 4)
    settings = {"sentences": "lines", "documents": "records", "held_out": 1}
    corpus = prepare([str(folder / "other.txt")], folder / "other", **settings, processes=1)
    made = pretrain("tiny", data=corpus.folder, output=folder / "made", device="cpu", updates=20, rate=0.01, **SIZES)
    return made, None


@pytest.mark.parametrize(
    "family",
    [pytest.param(make, marks=needs_shared) for make in (checkpoint, hdf5, native)] + [run],
    ids=["TensorFlow", "2018", "native", "run"],
)
def test_a_model_of_each_family_learns_the_domain_and_stays_what_it_is(family, text, tmp_path):
    model, vocab = family(tmp_path)
    tuned(model, text, tmp_path / "run", updates=20, vocab=vocab)
    before, after = perplexities(tmp_path / "run")
    assert after["mean"] < before["mean"] / 2
    was, now = load_weights(model, vocab=vocab), load_weights(tmp_path / "run")
    assert (now.config, now.tokenizer, now.vocabulary.words) == (was.config, was.tokenizer, was.vocabulary.words)
    lines = text.with_name("held.txt").read_text(encoding="utf-8").splitlines()
    for what, told in ((was, before), (now, after)):
        found = LanguageModel(what, device="cpu").perplexity(lines)
        assert told["events"] == found.events
        for name in ("forward", "backward", "mean", "unknown"):
            assert told[name] == pytest.approx(getattr(found, name), rel=1e-4), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_before_and_after_are_computed_the_same_way(model, text, tmp_path, precision):
    # Too small a rate to change a weight.
    settings = {"updates": 2, "rate": 1e-30, "evaluate_every": 1, "precision": precision}
    tuned(model, text, tmp_path / "run", **settings)
    log = read_log(tmp_path / "run")
    (before,) = [record for record in log if record["kind"] == "before"]
    figures = ("forward", "backward", "mean", "events", "unknown")
    for record in [record for record in log if record["kind"] == "evaluation"]:
        assert [record[name] for name in figures] == [before[name] for name in figures]  # bit for bit
        assert not record["best"]
    lines = text.with_name("held.txt").read_text(encoding="utf-8").splitlines()
    exact = LanguageModel.load(model, device="cpu").perplexity(lines).mean
    assert before["mean"] == pytest.approx(exact, rel=1e-5 if precision == "float32" else 0.03)
    assert (before["mean"] == pytest.approx(exact, rel=1e-5)) is (precision == "float32")


def test_all_paths_may_begin_at_home(model, text, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned("~/model", text, "~/run", held_out="~/held.txt", updates=2) == tmp_path / "run"
    finetune("~/model", iter(["~/text.txt"]), output="~/again", held_out="~/held.txt", device="cpu", **QUICK, updates=2)
    assert same(arrays(tmp_path / "run"), arrays("~/again"))
    assert (tmp_path / "run/recipe.toml").read_bytes() == (tmp_path / "again/recipe.toml").read_bytes()
    with pytest.raises(InputError, match=r"texts is one path .*\nhint: put it in a list"):
        finetune(model, str(text), output=tmp_path / "other")


def test_settings_are_given_as_to_pretrain(model, text, tmp_path):
    """`key=value` on the command line, values in Python."""
    given = {"updates": 2, "optimizer.clip": None, "dropout.input": 0.2, "optimizer.name": "sgd", "lengths": [8, 64]}
    tuned(model, text, tmp_path / "run", **given)
    recipe = find_recipe(tmp_path / "run/recipe.toml")
    assert (recipe.train.updates, recipe.optimizer.clip, recipe.optimizer.name) == (2, None, "sgd")
    assert (recipe.dropout.input, recipe.data.lengths) == (0.2, (8, 64))


def test_text_without_sentences_is_told(model, text, tmp_path):
    text.write_text("\n".join(["words , words ."] * 400 + ["words , " * 600]) + "\n")
    said = []
    tuned(model, text, tmp_path / "run", updates=1, show=said.append)
    assert f"a sentence has more than 1,000 words (the first in {text}:401)" in said[0]["text"]


def test_a_new_vocabulary_gets_a_new_head_on_the_same_body(model, text, tmp_path):
    held_by_the_start = {}

    def watch(record):
        if record["kind"] == "train" and not held_by_the_start:
            held_by_the_start.update(arrays(tmp_path / "run"))  # a run loads from its beginning

    tuned(model, text, tmp_path / "run", updates=20, vocab="new", show=watch)
    body = {name: array for name, array in arrays(model).items() if not name.startswith("head.")}
    assert all(np.array_equal(held_by_the_start[name], array) for name, array in body.items())
    words = load_weights(tmp_path / "run").vocabulary.words
    assert words[:3] == ["<S>", "</S>", "<UNK>"]
    assert set(words[3:]) == set(text.read_text(encoding="utf-8").split())
    before, after = perplexities(tmp_path / "run")
    assert after["mean"] < 0.8 * before["mean"]


def test_the_words_of_the_old_head_keep_their_rows_and_the_others_share_that_of_the_unknown(model, text, tmp_path):
    text.write_text(
        "\n".join(f"{line} worms , worms and bees" for line in domain_lines(20, 5)) + "\n", encoding="utf-8"
    )
    tuned(model, text, tmp_path / "run", updates=1, vocab="new")
    corpus = Corpus.open(tmp_path / "run.corpus")
    old, new = load_weights(model), with_new_head(load_weights(model), corpus)
    top = np.random.default_rng(1).normal(size=old.config.projection)
    was, now = (dict(zip(one.vocabulary.words, one.arrays["head.weight"] @ top + one.arrays["head.bias"], strict=True)) for one in (old, new))  # fmt: skip
    kept = [word for word in now if word in was and word != "<UNK>"]
    assert {"words", "<S>", "</S>"} <= set(kept)
    assert [now[word] for word in kept] == pytest.approx([was[word] for word in kept])
    others = {word: np.exp(now[word] - was["<UNK>"]) for word in now if word not in kept}
    counts = {"worms": 80, "bees": 40, "and": 40, "<UNK>": 0}  # in both directions
    assert others == pytest.approx({word: (count + 1) / 164 for word, count in counts.items()}, rel=1e-4)


def test_words_seen_once_teach_a_new_head_what_the_unknown_is_like(model, text, tmp_path):
    lines = [f"{line} the {name}" for line, name in zip(domain_lines(3, 5), ("oak", "elm", "ash"), strict=True)]
    text.write_text("\n".join([*domain_lines(20, 6), *lines]) + "\n", encoding="utf-8")
    tuned(model, text, tmp_path / "run", updates=1, vocab="new")
    corpus = Corpus.open(tmp_path / "run.corpus")
    assert "the" in corpus.vocabulary
    assert not {"oak", "elm", "ash"} & {*corpus.vocabulary.words}
    assert int(corpus.counts[corpus.targets(np.arange(corpus.words)) == corpus.vocabulary.id("<UNK>")].sum()) == 3


def test_a_run_knows_its_model_by_its_numbers_and_not_by_its_place(model, text, tmp_path):
    tuned(model, text, tmp_path / "run", updates=2)
    moved = shutil.copytree(model, tmp_path / "elsewhere" / Path(model).name)
    tuned(moved, text, tmp_path / "run", updates=2)
    assert str(tmp_path) not in (tmp_path / "run/recipe.toml").read_text(encoding="utf-8")
    words = load_weights(model).vocabulary
    other = tmp_path / "other" / Path(model).name
    save_weights(replace(lively(tiny(head=len(words)), seed=9), vocabulary=words), other)
    with pytest.raises(DataError, match="holds a run of another recipe"):
        tuned(other, text, tmp_path / "run", updates=2)


def unigram_perplexity(text, held) -> float:
    """Of both directions together, as each word is counted once more than it is there; the text has all words of what is held out."""
    sentences = text.read_text(encoding="utf-8").splitlines()
    counts = Counter(word for line in sentences for word in 2 * line.split())
    counts.update({"<S>": len(sentences), "</S>": len(sentences), "<UNK>": 0})
    total = sum(counts.values()) + len(counts)
    lines = held.read_text(encoding="utf-8").splitlines()
    words = [word for line in lines for word in [*line.split(), "</S>"]]  # <S> has the same share
    return math.exp(-sum(math.log((counts[word] + 1) / total) for word in words) / len(words))


def test_a_new_head_begins_with_how_frequent_the_words_are_and_goes_on_from_there(text, tmp_path):
    save_weights(lively(tiny(), seed=4), tmp_path / "headless")
    said = []
    settings = {"batch_tokens": 200, "optimizer.warmup": 0}  # and the recipe's own rate and length for such a head
    options = {"held_out": str(text.with_name("held.txt")), "device": "cpu", "show": said.append}
    run = finetune(tmp_path / "headless", [text], output=tmp_path / "run", **settings, **options)
    before, after = perplexities(run)
    assert before["mean"] == pytest.approx(unigram_perplexity(text, text.with_name("held.txt")), rel=1e-4)
    assert before["forward"] == pytest.approx(before["backward"], rel=1e-4)
    assert after["mean"] < before["mean"]
    recipe = find_recipe(run / "recipe.toml")
    assert (recipe.optimizer.rate, recipe.train.epochs) == (1e-3, 3)
    assert "knows how frequent they are and no more: optimizer.rate is 0.001 and epochs are 3" in said[0]["text"]
    tuned(tmp_path / "headless", text, tmp_path / "other", rate=0.02, updates=20)
    recipe = find_recipe(tmp_path / "other/recipe.toml")
    assert (recipe.optimizer.rate, recipe.train.epochs, recipe.train.updates) == (0.02, None, 20)
    before, after = perplexities(tmp_path / "other")
    assert after["mean"] < 0.9 * before["mean"]


@needs_shared
def test_the_weights_of_2018_without_a_head_learn_by_the_default_recipe(tmp_path):
    """Random rows once made them worse than any unigram, and trained the body to please them."""
    lines = [line for seed in range(3) for line in domain_lines(400, seed)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = finetune(FIXTURES / "allennlp", [tmp_path / "text.txt"], output=tmp_path / "run", device="cpu")
    before, after = perplexities(run)
    assert before["mean"] < len(load_weights(run).vocabulary)  # that of words of one frequency
    assert after["mean"] < 0.95 * before["mean"]


def test_a_model_without_a_head_gets_one(text, tmp_path):
    save_weights(lively(tiny(), seed=4), tmp_path / "headless")
    with pytest.raises(ModelError, match="has no head"):
        tuned(tmp_path / "headless", text, tmp_path / "run", vocab="model")
    tuned(tmp_path / "headless", text, tmp_path / "run", updates=10)
    before, after = perplexities(tmp_path / "run")
    assert after["mean"] < before["mean"]
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tuned(tmp_path / "headless", text, tmp_path / "given", updates=2, vocab=str(tmp_path / "vocab.txt"))
    assert load_weights(tmp_path / "given").vocabulary.words == WORDS


def test_a_model_that_only_gets_worse_is_kept_as_it_was(model, text, tmp_path):
    tuned(model, text, tmp_path / "learned", updates=20)
    said = []
    settings = {"updates": 6, "rate": 0.1, "evaluate_every": 2}
    tuned(tmp_path / "learned", text, tmp_path / "run", **settings, show=said.append)
    evaluations = [record["mean"] for record in read_log(tmp_path / "run") if record["kind"] == "evaluation"]
    before, after = perplexities(tmp_path / "run")
    assert min(evaluations) > before["mean"] == after["mean"]
    assert load_weights(tmp_path / "run").training["update"] == 0
    assert "a lower optimizer.rate" in said[-1]["text"]
    assert same(arrays(tmp_path / "run"), arrays(tmp_path / "learned"))


class _KilledError(Exception):
    pass


def test_an_interrupted_run_ends_as_the_other(model, text, tmp_path):
    settings = {"updates": 12, "checkpoint_every": 3, "evaluate_every": 4, "dropout.input": 0.2}
    tuned(model, text, tmp_path / "whole", **settings)

    def kill(record):
        if record["update"] == 8 and record["kind"] == "train":
            raise _KilledError

    with pytest.raises(_KilledError):
        tuned(model, text, tmp_path / "run", **settings, show=kill)
    tuned(model, text, tmp_path / "run", **settings)
    assert same(arrays(tmp_path / "run"), arrays(tmp_path / "whole"))
    assert perplexities(tmp_path / "run") == perplexities(tmp_path / "whole")
    logs = [[{**record, "clock": None} for record in read_log(tmp_path / name)] for name in ("run", "whole")]
    assert logs[0] == logs[1]
    assert tuned(model, text, tmp_path / "run", **settings) == tmp_path / "run"  # and once more, when all is done
    assert same(arrays(tmp_path / "run"), arrays(tmp_path / "whole"))


def test_a_run_is_not_taken_for_that_of_another_model_or_text(model, text, tmp_path):
    tuned(model, text, tmp_path / "run", updates=2)
    save_weights(load_weights(model), tmp_path / "other")
    with pytest.raises(DataError, match=r"other \(\w+\) goes on"):
        tuned(tmp_path / "other", text, tmp_path / "run", updates=2)
    with pytest.raises(DataError, match="made in another way"):
        tuned(model, text.with_name("held.txt"), tmp_path / "run", updates=2, held_out=str(text))


def test_a_share_of_the_lines_is_held_out(model, text, tmp_path):
    tuned(model, text, tmp_path / "run", updates=2, held_out=0.3)
    corpus = Corpus.open(tmp_path / "run.corpus")
    held = {
        tuple(corpus.spellings(corpus.heldout["heldout"].sentence(n))) for n in range(len(corpus.heldout["heldout"]))
    }
    read = {tuple(corpus.spellings(corpus.train.sentence(n))) for n in range(len(corpus.train))}
    assert held
    assert not held & read
    assert held | read == {tuple(line.split()) for line in text.read_text(encoding="utf-8").splitlines()}
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run.corpus"]


def test_words_that_are_split_already_stay_so_for_a_model_that_splits_at_spaces(model, text, tmp_path):
    whitespace = replace(load_weights(model).tokenizer, name="whitespace")
    save_weights(replace(load_weights(model), tokenizer=whitespace), tmp_path / "spaces")
    text.write_text("\n".join(line.replace(" .", ".") for line in domain_lines(20, 5)) + "\n")
    tuned(tmp_path / "spaces", text, tmp_path / "run", updates=1)
    corpus = Corpus.open(tmp_path / "run.corpus")
    assert corpus.tokenizer == load_weights(tmp_path / "run").tokenizer == whitespace
    assert corpus.spellings(corpus.train.sentence(0))[-1].endswith(".")


def test_words_are_split_by_the_model_s_own_tokenizer_though_its_language_has_another(model, text, tmp_path):
    plain = replace(load_weights(model).tokenizer, name="plain")
    save_weights(replace(load_weights(model), tokenizer=plain), tmp_path / "plain")
    text.write_text("\n".join(f"I can't use {line}" for line in domain_lines(20, 5)) + "\n")
    for _ in range(2):
        tuned(tmp_path / "plain", text, tmp_path / "run", updates=1)
    corpus = Corpus.open(tmp_path / "run.corpus")
    assert corpus.tokenizer == load_weights(tmp_path / "run").tokenizer == plain
    assert corpus.spellings(corpus.train.sentence(0))[:4] == ["I", "can", "'", "t"]  # "ca", "n't" is penn's


def test_text_that_has_changed_since_it_was_prepared_is_not_trained_on_as_it_was(model, text, tmp_path):
    tuned(model, text, tmp_path / "run", updates=1)
    shutil.rmtree(tmp_path / "run")
    text.write_text(text.read_text().replace("words", "worms"))  # as many bytes
    later = (tmp_path / "run.corpus/corpus.json").stat().st_mtime_ns + 10**9
    os.utime(text, ns=(later, later))
    refused(tmp_path, DataError, r"run\.corpus: a corpus is there, but older than .*text\.txt", model, text)


def refused(tmp_path, error, match, model, text, **options):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(error, match=match):
        tuned(model, text, tmp_path / "run", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before  # nothing was made


@needs_shared
@pytest.mark.parametrize("kind", ["char_only", "word_char"])
def test_models_with_an_alphabet_of_their_own_are_refused(kind, text, tmp_path):
    refused(tmp_path, ModelError, "only models that read bytes", FIXTURES / "efml_toy" / kind, text)


def test_models_that_read_words_are_refused(text, tmp_path):
    words = Vocabulary(WORDS)
    weights = replace(lively(words_only(len(words)), seed=1), vocabulary=words)
    save_weights(weights, tmp_path / "model")
    refused(tmp_path, ModelError, "reads whole words", tmp_path / "model", text)


@needs_shared
def test_a_head_without_a_vocabulary_is_refused_with_both_ways_out(text, tmp_path):
    refused(tmp_path, ModelError, "--vocab FILE.*--vocab new", FIXTURES / "tf_checkpoint", text)


@pytest.mark.parametrize("setting", [{"evaluate_on": "dev"}, {"memory_gb": 8}, {"accumulate": 5000}], ids=str)
def test_text_that_was_prepared_for_a_run_that_cannot_begin_does_not_stay(model, text, tmp_path, setting):
    with pytest.raises(RecipeError, match=next(iter(setting))):
        tuned(model, text, tmp_path / "run", updates=2, **setting)
    assert not list(tmp_path.glob("run.*"))
    tuned(model, text, tmp_path / "run", updates=2)
    with pytest.raises(DataError, match="another recipe"):  # a run that has begun needs its text
        tuned(model, text, tmp_path / "run", updates=3)
    assert (tmp_path / "run.corpus/corpus.json").is_file()


def test_text_that_was_prepared_for_the_run_of_another_model_does_not_stay(model, text, tmp_path):
    run = tuned(model, text, tmp_path / "run", updates=2)
    shutil.rmtree(tmp_path / "run.corpus")
    with pytest.raises(DataError, match="another recipe"):
        tuned(run, text, tmp_path / "run", updates=2)
    assert not list(tmp_path.glob("run.*"))


def test_an_extra_that_is_missing_leaves_nothing(model, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bz3", None)
    text.rename(tmp_path / "text.bz3")
    refused(tmp_path, MissingExtra, r"text\.bz3: reading \.bz3", model, tmp_path / "text.bz3")


def test_what_cannot_be_done_is_said_before_anything_is_made(model, text, tmp_path):
    refused(tmp_path, InputError, "the device 'mps' cannot be used", model, text, device="mps")
    refused(tmp_path, RecipeError, "sizes are those of the model", model, text, cells=24)
    refused(tmp_path, RecipeError, "did you mean `train.epochs`", model, text, epoch=2)
    refused(tmp_path, InputError, "some text should be held out", model, text, held_out=0)
    refused(tmp_path, InputError, "no such file", model, text, held_out="nowhere.txt")
    for share in ("5%", "0.05"):
        refused(tmp_path, InputError, f"(?s)'{share}'.*a number: 0.05 for 5%", model, text, held_out=share)
    text.with_name("held.txt").write_text(" \n")
    refused(tmp_path, DataError, r"no sentence in .*held\.txt", model, text)
    text.write_text("one line\n")
    refused(tmp_path, DataError, "(?s)would be held out.*--held-out FILE", model, text, held_out=0.5)
