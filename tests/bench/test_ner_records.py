"""NER runs are joined by model: what a run records, whose layers it reads, and which runs make a table."""

import importlib
import json
import lzma
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from models import lively, tiny

from elmofire import DataError
from elmofire.formats.native import write
from elmofire.formats.weights import Weights
from elmofire.tasks.trainer import TrainerSettings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SENTENCES = "Ann NNP I-NP I-PER\nmet VBD I-VP O\nBo NNP I-NP I-PER\n\nRome NNP I-NP I-LOC\nslept VBD I-VP O\n"


@pytest.fixture(scope="module")
def ner():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("ner")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The shared task in small, word vectors, and two models."""
    folder = tmp_path_factory.mktemp("ner")
    for name in ("eng.train.xz", "eng.testa.xz", "eng.testb.xz"):
        (folder / name).write_bytes(lzma.compress(SENTENCES.encode()))
    words = np.frombuffer(b"ann\nmet", dtype=np.uint8)
    np.savez(folder / "glove.npz", words=words, vectors=np.eye(2, dtype=np.float16))
    for seed, model in enumerate(("one", "other")):
        write(lively(tiny(), seed=seed), folder / model)
    return folder


def a_run(ner, folder: Path, output: Path, **changes) -> dict:
    given = {
        "model": str(folder / "one"), "ner": folder, "glove": folder / "glove.npz", "configuration": "model", "seed": 1,
        "output": output, "features": None, "trial": 1,
    }  # fmt: skip
    ner.run(Namespace(**given | changes))
    return json.loads(output.read_text().splitlines()[-1])


def test_shared_layers_are_those_of_the_model_and_of_an_untrained_one_for_each_seed(ner, folder, tmp_path):
    ner.features(Namespace(model=str(folder / "one"), ner=folder, folder=tmp_path))
    names = ["ner-model", *(f"ner-untrained-{seed}" for seed in (1, 2, 3, 4, 5))]
    assert sorted(file.stem for file in tmp_path.iterdir()) == names
    assert len({(tmp_path / f"{name}.safetensors").read_bytes() for name in names}) == 6
    for configuration in ner.CONFIGURATIONS:
        for seed in (1, 4):
            given = {"configuration": configuration, "seed": seed}
            shared = a_run(ner, folder, tmp_path / "runs", features=tmp_path, **given)
            alone = a_run(ner, folder, tmp_path / "runs", **given)
            assert (shared["dev_f1"], shared["mix"]) == (alone["dev_f1"], alone["mix"])
            assert "test_f1" not in shared


def test_layers_of_another_model_or_seed_are_not_used(ner, folder, tmp_path):
    ner.features(Namespace(model=str(folder / "one"), ner=folder, folder=tmp_path))
    with pytest.raises(DataError, match="holds layers of the model"):
        a_run(ner, folder, tmp_path / "runs", features=tmp_path, model=str(folder / "other"))
    (tmp_path / "ner-untrained-2.safetensors").replace(tmp_path / "ner-untrained-3.safetensors")
    with pytest.raises(DataError, match="holds layers of the model"):
        a_run(ner, folder, tmp_path / "runs", features=tmp_path, configuration="untrained", seed=3)


def test_a_run_says_which_model_it_is_of(ner, folder, tmp_path):
    output = tmp_path / "runs"
    runs = [a_run(ner, folder, output, model=str(folder / model)) for model in ("one", "other")]
    without = a_run(ner, folder, output, configuration="glove+characters")
    assert runs[0]["identity"] == without["identity"] != runs[1]["identity"]
    assert runs[0]["storage"] == "float32"


def test_untrained_models_differ_by_seed_and_have_no_head(ner):
    weights: Weights = lively(tiny())
    drawn = [ner.untrained(weights, seed) for seed in (1, 1, 2)]
    assert [one.config.head for one in drawn] == [0, 0, 0]
    name = "encoder.characters"
    assert (drawn[0].arrays[name] == drawn[1].arrays[name]).all()
    assert (drawn[0].arrays[name] != drawn[2].arrays[name]).any()


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def records(ner) -> list[dict]:
    """Of all runs; the model finds two spans in three, all others one."""

    def record(configuration: str, seed: int) -> dict:
        right = 2 if configuration in ("model", "glove+characters+model") else 1
        counts = np.tile([[right, 3, 3]], (7, 1))
        return {
            "configuration": configuration, "seed": seed, "model": "some", "identity": "1a", "storage": "float32",
            "device": "CPU", "commit": f"c{seed}", "dev_f1": 50.0, "test_f1": 100 * right / 3, "best_epoch": 1, "epochs_run": 3,
            "test_counts": ner.packed(counts), **ner.asdict(TrainerSettings()),
        }  # fmt: skip

    return [record(configuration, seed) for configuration in ner.CONFIGURATIONS for seed in (5, 1, 2, 3, 4)]


def test_a_table_has_one_record_for_each_comparison_with_the_models_identity(ner, records, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(ner, "keep", lambda name, **figures: kept.append({"name": name, **figures}))
    halves = [tmp_path / "a", tmp_path / "b"]
    for number, file in enumerate(halves):
        file.write_text("".join(json.dumps(record) + "\n" for record in records[number::2]))
    ner.table(Namespace(files=halves))
    assert [(record["first"], record["second"]) for record in kept] == ner.COMPARISONS
    for record in kept:
        assert (record["name"], record["identity"], record["storage"]) == ("ner", "1a", "float32")
        assert record["seeds"] == [1, 2, 3, 4, 5]
        assert record["batch"] == 64
        assert record["difference"] == pytest.approx(100 / 3, abs=1e-3)
        assert record["excludes_zero"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("identity", "2b"), ("storage", "int8"), ("learning_rate", 0.01), ("epochs", 3), ("patience", 2), ("clip", 1.0)],
)
def test_runs_of_different_models_or_settings_make_no_table(ner, records, name, value):
    records[7][name] = value
    with pytest.raises(DataError, match=f"the runs differ in their {name}: .*{value}"):
        ner.finished(records)


def test_runs_of_several_commits_do(ner, records):
    assert len(ner.finished(records)) == 5


def test_what_is_missing_or_too_many_is_named(ner, records):
    with pytest.raises(
        DataError, match=r"missing: glove\+characters with seed 4, glove\+characters\+model with seed 4, "
    ):
        ner.finished([one for one in records if one["seed"] != 4])
    with pytest.raises(DataError, match=r"more than once: glove\+characters with seed 5$"):
        ner.finished([*records, records[0]])
    with pytest.raises(DataError, match=r"no comparison: model with seed 6$"):
        ner.finished([*records, records[10] | {"seed": 6}])


def test_comparisons_that_have_all_seeds_do_not_wait_for_the_others(ner, records, tmp_path, monkeypatch, capsys):
    kept = []
    monkeypatch.setattr(ner, "keep", lambda name, **figures: kept.append((figures["first"], figures["second"])))
    some = [one for one in records if (one["configuration"], one["seed"]) != ("untrained", 3)]
    (tmp_path / "runs").write_text("".join(json.dumps(record) + "\n" for record in some))
    ner.table(Namespace(files=[tmp_path / "runs"]))
    assert kept == ner.COMPARISONS[:2]
    assert capsys.readouterr().err == "runs that are missing: untrained with seed 3\n"


def test_trials_runs_without_an_identity_and_other_test_sentences_are_refused(ner, records):
    with pytest.raises(DataError, match="a trial is among the runs"):
        ner.finished([{key: told for key, told in one.items() if key != "test_counts"} for one in records])
    with pytest.raises(DataError, match="do not say their identity"):
        ner.finished([{key: told for key, told in one.items() if key != "identity"} for one in records])
    records[0]["test_counts"] = ner.packed(np.tile([[1, 3, 4]], (7, 1)))
    with pytest.raises(DataError, match="different test sentences"):
        ner.finished(records)
