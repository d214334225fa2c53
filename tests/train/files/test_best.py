"""A run loads as its best model, and has one at every moment after the first."""

import json
import shutil

import numpy as np
import pytest
from formats.strategies import vocabulary_of
from models import lively, tiny
from train.run import kills

from elmofire import Embedder, ModelError, Weights, load_weights, save_weights
from elmofire.formats import native
from elmofire.train.files.best import keep_best, read_run, update_run


def model(seed: int = 0) -> Weights:
    config = tiny(head=8)
    return lively(config, seed=seed, vocabulary=vocabulary_of(config))


def same(read: Weights, expected: Weights) -> bool:
    return all(np.array_equal(read.arrays[name], array) for name, array in expected.arrays.items())


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestKeeping:
    def test_the_best_model_replaces_the_one_before(self, tmp_path):
        update_run(tmp_path, started="today", update=0)
        assert read_run(tmp_path) == {"format": 1, "best": None, "started": "today", "update": 0}
        keep_best(tmp_path, 250, model(1), perplexity=90.5)
        folder = keep_best(tmp_path, 500, model(2), perplexity=80.5)
        assert folder == tmp_path / "best-00000500"
        assert names(tmp_path) == ["best-00000500", "run.json"]
        assert read_run(tmp_path) == {
            "format": 1,
            "best": "best-00000500",
            "started": "today",
            "update": 500,
            "perplexity": 80.5,
        }
        assert same(load_weights(folder), model(2))

    def test_the_same_model_once_more_is_left_as_it_is(self, tmp_path):
        first = keep_best(tmp_path, 500, model(2), perplexity=80.5)
        before = (first / "model.safetensors").stat()
        assert keep_best(tmp_path, 500, model(2), perplexity=80.5) == first
        after = (first / "model.safetensors").stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_another_model_of_the_same_update_takes_its_place(self, tmp_path):
        for seed, expected in ((1, "best-00000500"), (2, "best-00000500-again"), (3, "best-00000500")):
            assert keep_best(tmp_path, 500, model(seed)) == tmp_path / expected
            assert names(tmp_path) == [expected, "run.json"]
            assert same(load_weights(tmp_path), model(seed))

    def test_a_best_model_that_was_damaged_is_written_anew(self, tmp_path):
        folder = keep_best(tmp_path, 500, model(2))
        (folder / "config.json").write_text("{")
        keep_best(tmp_path, 500, model(2))
        assert same(load_weights(tmp_path), model(2))

    def test_what_others_keep_there_stays(self, tmp_path):
        for name in ("best-of-all", "best-1", "checkpoints", ".hidden"):
            (tmp_path / name).mkdir()
        keep_best(tmp_path, 1, model(1))
        keep_best(tmp_path, 2, model(2))
        assert names(tmp_path) == [".hidden", "best-00000002", "best-1", "best-of-all", "checkpoints", "run.json"]

    def test_a_kill_before_any_file_operation_leaves_a_best_model(self):
        kills.run("""
import warnings
from train.run.kills import kill_at_every_step
from train.files.test_best import keep_best, load_weights, model, names, read_run, same

MODELS = {seed: model(seed) for seed in (1, 2, 3)}

for now in (500, 250):  # a better one, and another one of the update that was the best already
    def prepare(folder):
        keep_best(folder, 250, MODELS[1], seed=1)

    def act(folder):
        keep_best(folder, now, MODELS[2], seed=2)

    def check(folder, killed):
        read = load_weights(folder)
        seed = read_run(folder)["seed"]
        assert same(read, MODELS[seed])
        assert killed or seed == 2
        keep_best(folder, 750, MODELS[3], seed=3)  # the next one leaves nothing of the killed writer behind
        assert same(load_weights(folder), MODELS[3])
        assert names(folder) == ["best-00000750", "run.json"], names(folder)

    assert kill_at_every_step(prepare, act, check) > 12
""")


class TestLoading:
    def test_a_run_loads_wherever_a_model_does(self, tmp_path, monkeypatch):
        keep_best(tmp_path / "run", 500, model(2))
        save_weights(model(2), tmp_path / "model")
        sentences = [["One", "sentence", "."], ["日本語"]]
        expected = Embedder.load(tmp_path / "model", device="cpu").embed(sentences)
        monkeypatch.chdir(tmp_path)
        for what in ("run", tmp_path / "run", str(tmp_path / "run/")):
            for ours, theirs in zip(Embedder.load(what, device="cpu").embed(sentences), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert load_weights("run").vocabulary.words == model().vocabulary.words
        assert load_weights("run").source.what == "run/best-00000500"

    def test_a_run_without_an_evaluated_model_says_so(self, tmp_path):
        update_run(tmp_path, update=0)
        with pytest.raises(
            ModelError, match=f"{tmp_path}: this training run has no evaluated model yet\nhint: wait for"
        ):
            load_weights(tmp_path)

    def test_a_run_whose_best_model_is_gone_says_what_is_missing(self, tmp_path):
        shutil.rmtree(keep_best(tmp_path, 500, model()))
        with pytest.raises(ModelError, match=r"best-00000500/config\.json: cannot be read"):
            load_weights(tmp_path)

    @pytest.mark.parametrize("best", ["..", "../other", "best-00000500/..", "/etc", "", "best-0000\x00", 5, ["x"], {}])
    def test_a_run_names_only_a_folder_of_its_own(self, tmp_path, best):
        (tmp_path / "run.json").write_text(json.dumps({"format": 1, "best": best}))
        with pytest.raises(
            ModelError, match=r"run\.json: best is .*, but should be a folder's name such as best-00000500"
        ):
            load_weights(tmp_path)

    def test_options_are_refused_since_a_run_has_its_own(self, tmp_path):
        keep_best(tmp_path, 500, model())
        with pytest.raises(ModelError, match="best-00000500: has its own settings"):
            load_weights(tmp_path, options=tmp_path / "options.json")

    @pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.txt"])
    def test_a_model_replaced_while_it_is_read_is_read_anew(self, tmp_path, monkeypatch, file):
        keep_best(tmp_path, 250, model(1))
        reader = {"config.json": "_read_config", "model.safetensors": "MappedTensors", "vocab.txt": "read_vocabulary"}[
            file
        ]
        read = getattr(native, reader)

        def replaced_first(path):
            monkeypatch.setattr(native, reader, read)
            keep_best(tmp_path, 500, model(2))
            return read(path)

        monkeypatch.setattr(native, reader, replaced_first)
        loaded = load_weights(tmp_path)
        assert same(loaded, model(2))
        assert loaded.vocabulary.words == model(2).vocabulary.words
