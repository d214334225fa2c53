"""en-small's card tells what the records say of this model, no more; and what is no float32 model, or too large, is not shipped."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from models import lively, tiny

from elmofire import load_weights, save_weights
from elmofire.errors import ModelError
from elmofire.formats import native
from elmofire.formats.weights import Weights
from elmofire.recipe import text_of
from elmofire.text.vocabulary import Vocabulary
from elmofire.train.recipes import find_recipe
from elmofire.train.settings import Recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", "man", "old", "shut", "door", "."])
SECTIONS = ["Use", "Text", "Training", "Perplexity", "What its vectors are worth", "Stored as int8"]
ALWAYS = ["Use", "Text", "Training", "Uses and limits", "Licenses"]


def recipe(seed: int) -> Recipe:
    return find_recipe("tiny", [f"train.seed={seed}", "epochs=none", "train.minutes=none", "train.updates=300"])


def trained(*, seed: int = 1, mean: float = 71.5) -> Weights:
    facts = {
        "recipe": text_of(recipe(seed)),
        "corpus": {"digest": "d", "tokens": 2_000_000, "report": {"words": {"coverage": 0.985}}},
        "update": 300,
        "tokens_read": 5_000_000,
        "held_out": {"split": "dev", "mean": mean},
    }
    return replace(lively(tiny(head=len(WORDS)), seed=seed, vocabulary=WORDS), training=facts)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """card, evaluate and ship, whose records are in a folder of their own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = [importlib.import_module(f"en_small.{name}") for name in ("card", "evaluate", "ship")]
    (tmp_path / "results").mkdir()
    for module in (found[0], importlib.import_module("tables")):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return found


@pytest.fixture
def card(modules):
    return modules[0]


@pytest.fixture
def evaluate(modules):
    return modules[1]


@pytest.fixture
def ship(modules):
    return modules[2]


@pytest.fixture
def keep(modules, tmp_path):
    def write(name: str, *records: dict) -> None:
        with (tmp_path / f"results/{name}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    return write


def perplexity(model: str, mean: float, **others) -> dict:
    return {
        "model": model, "storage": "float32", "precision": "float32", "split": "dev", "state": "zero", "whole": True,
        "sentences": 1234, "events": 56_789, "unknown": 0.0147, "forward": mean - 1, "backward": mean + 1, "mean": mean,
    } | others  # fmt: skip


def pos(identity: str | None, difference: float, first: str = "model concatenated", second: str = "glove", **others):
    told = {"first": first, "second": second, "means": [93.0, 93.0 - difference], "difference": difference, "seeds": 5}
    interval = {"low": difference - 0.1, "high": difference + 0.1}
    return told | interval | {"storage": "float32"} | ({"identity": identity} if identity else {}) | others


def ner(identity: str | None, difference: float) -> dict:
    return {
        "first": "model", "second": "untrained", "seeds": [1, 2], "first_test_f1": [80.0, 82.0], "difference": difference,
        "second_test_f1": [81.0 - difference] * 2, "interval": [difference - 1, difference + 1],
        "storage": "int8",
    } | ({"identity": identity} if identity else {})  # fmt: skip


def as_shipped(model: str, difference: float, **others) -> list[dict]:
    """What a probe of the int8 model says of it, and how it compares."""
    told = {"representation": "int8 concatenated", "also_identity": model, "also_storage": "int8"}
    about = {"identity": model, "storage": "float32"}
    compared = pos(model, difference, "int8 concatenated", "model concatenated", **told | others)
    del compared["representation"]
    return [about | told | others, compared]


def errors(model: str, *layers: float, **others) -> dict:
    told = {"model": model, "storage": "int8", "precision": "float32", "split": "dev", "against": "float32"}
    return told | {"of": model, "layer_errors": list(layers)} | others


def evaluated(update: int, seconds: float, mean: float) -> dict:
    return {"update": update, "kind": "evaluation", "mean": mean, "clock": {"seconds": seconds}}


def line(update: int, seconds: float) -> dict:
    return {"update": update, "kind": "train", "clock": {"seconds": seconds}}


def headings(made: str) -> list[str]:
    return re.findall(r"^## (.*)$", made, flags=re.MULTILINE)


def rows(made: str, start: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in found.strip("|").split("|")] for found in made.splitlines() if found.startswith(start)
    ]


class TestCard:
    def test_without_records_it_has_no_figures_but_those_of_the_config(self, card):
        made = card.card(trained())
        assert headings(made) == ALWAYS
        assert (
            "300 updates, 5M tokens in each direction, sentence ends counted, 2.5 times the text. Word for word:"
            in made
        )
        assert f"```toml\n{text_of(recipe(1)).strip()}\n```" in made
        assert "9 most frequent words, which cover 98.5%" in made
        assert "The run took" not in made

    def test_other_seeds_of_the_recipe_stand_beside_it(self, card, evaluate, keep):
        weights, other = trained(), trained(seed=2, mean=72.0)
        own, again = evaluate.identity(weights), evaluate.identity(other)
        assert evaluate.family(weights) == evaluate.family(other)
        kin = {"family": evaluate.family(other)}
        keep(evaluate.RECORDS, perplexity(own, 75, **kin), perplexity(again, 75.75, **kin), perplexity("stranger", 40))
        told = f"The same recipe with another seed gives 75.75 on {card.TEXTS['dev']} (+1.0%)."
        assert told in card.card(weights)

    def test_every_section_tells_its_records(self, card, evaluate, keep):
        weights = trained()
        own = evaluate.identity(weights)
        keep(
            "en_small_corpus",
            {"file": "enwiki-1.txt.bz3", "paragraphs": 700, "dropped: formulas": 3, "mended: As of": 0},
            {"file": "books.txt.bz3", "paragraphs": 300, "mended: As of": 4},
            {"vocabulary": 9, "splits": {"train": {"sentences": 1000, "tokens": 25_000}}},
        )
        searched = [{"stage": "one", "variant": name, "seed": 1, "ended": name != "c"} for name in "abc"]
        keep("en_small_search", *searched)
        keep("en_small_training", line(300, 600), evaluated(300, 30, 71.5))
        keep(
            "en_small_ngram",
            *[{"split": "dev", "direction": way, "perplexity": "150"} for way in ("forward", "backward")],
        )
        int8 = {"storage": "int8"}
        keep(
            evaluate.RECORDS, perplexity(own, 75), perplexity(own, 75.15, **int8), perplexity(own, 70, state="carried")
        )
        keep(evaluate.RECORDS, errors(own, 0.01, 0.02, 0.03))
        keep("pos_probe", pos(own, 4.0), *as_shipped(own, -0.05))
        keep("ner", ner(own, 9.0))
        made = card.card(weights)
        assert headings(made) == [*SECTIONS, "Uses and limits", "Licenses"]
        assert "Of 1,000 paragraphs" in made
        assert "formulas (3). Damage mended in others: As of (4)." in made
        assert rows(made, "| train") == [["train", "1,000", "25,000"]]
        assert "10.5 minutes" in made
        assert "among 2 short runs" in made
        told = [row[1:] for row in rows(made, f"| {card.TEXTS['dev']} | ") if row[1] != "1,234"]
        assert told == [
            ["en-small in float32", "74.00", "76.00", "75.00", "50.0%"],
            ["en-small as shipped, stored as int8", "74.15", "76.15", "75.15", "50.1%"],
            ["Kneser-Ney 4-gram", "150.00", "150.00", "150.00", ""],
            ["en-small in float32", "69.00", "71.00", "70.00"],
        ]
        assert rows(made, "| en-small") == [
            ["en-small concatenated", "93.00", "glove", "89.00", "+4.00 (+3.90 to +4.10)"],
            ["en-small", "81.00", "untrained", "72.00", "+9.00 (+8.00 to +10.00)"],
        ]
        stored = made[made.index("## Stored as int8") : made.index("## Uses and limits")]
        assert "+0.200%" in stored
        assert "1.0%, 2.0%, 3.0%" in stored
        assert "-0.050 points" in stored

    def test_figures_are_those_of_this_model_whichever_was_measured_last(self, card, evaluate, keep):
        own, other = evaluate.identity(trained()), evaluate.identity(trained(seed=2))
        for identity, mean, gain in ((own, 75, 4.0), (other, 66, 5.0), (None, 55, 6.0)):
            keep("pos_probe", pos(identity, gain) | {"model": "the same path"})
            keep("ner", ner(identity, gain + 5) | {"model": "the same path"})
            keep(evaluate.RECORDS, perplexity(str(identity), mean))
        for model, gain, mean in ((trained(), "4.00", "75.00"), (trained(seed=2), "5.00", "66.00")):
            made = card.card(model)
            told = [row[-1].split()[0] for row in rows(made, "| en-small")]
            assert told == [f"+{gain}", f"+{float(gain) + 5:.2f}"]
            assert [row[4] for row in rows(made, "| dev")[1:]] == [mean]
        assert headings(card.card(trained(seed=3))) == ALWAYS

    def test_of_figures_measured_twice_the_newest_counts(self, card, evaluate, keep):
        own = evaluate.identity(trained())
        keep("pos_probe", pos(own, 4.0), pos(own, 4.5), pos(own, 4.7, storage="int8"))
        assert [row[-1] for row in rows(card.card(trained()), "| en-small")] == ["+4.50 (+4.40 to +4.60)"]

    def test_parts_of_a_split_are_no_perplexity_of_it(self, card, evaluate, keep):
        keep(evaluate.RECORDS, perplexity(evaluate.identity(trained()), 75, whole=False))
        assert "Perplexity" not in headings(card.card(trained()))

    def test_int8_is_held_against_float32_alone(self, card, evaluate, keep):
        own, other = evaluate.identity(trained()), evaluate.identity(trained(seed=2))
        keep(evaluate.RECORDS, perplexity(own, 75, storage="int8"), perplexity(own, 70, storage="float16"))
        keep(evaluate.RECORDS, errors(own, 0.5, against="float16"), errors(own, 0.5, of=other))
        for others in ({"storage": "float16"}, {"also_storage": "float32"}, {"also_identity": other}):
            keep("pos_probe", *as_shipped(own, -0.05, **others))
        assert "Stored as int8" not in headings(card.card(trained()))
        keep(evaluate.RECORDS, perplexity(own, 74), errors(own, 0.01), errors(own, 0.5, of=other))
        made = card.card(trained())
        assert "+1.351%; vectors are off by 1.0% of" in made
        assert "50.0%" not in made

    def test_what_glove_cannot_see_is_said_where_it_is_compared(self, card, evaluate, keep):
        own = evaluate.identity(trained())
        keep("pos_probe", pos(own, 4.0, second="model layer 0"))
        assert "no capitals" not in card.card(trained())
        keep("pos_probe", pos(own, 4.0))
        said = " ".join(card.card(trained()).split())
        assert "sees no capitals and no suffixes, while the biLM reads characters" in said
        assert (
            "clean comparison, of context learned from text, is with its own layer 0 and with the untrained biLM"
            in said
        )


class TestMinutes:
    def test_they_are_those_of_the_last_line_and_of_evaluations_behind_it(self, card):
        log = [line(100, 60), evaluated(100, 20, 90.0), line(200, 150), line(300, 240), evaluated(300, 30, 71.5)]
        assert card.minutes_of(log, trained().training) == pytest.approx(270 / 60)
        assert card.minutes_of(log[:2] + log[-1:], trained().training) == pytest.approx(110 / 60)

    def test_those_of_another_run_are_not_told(self, card):
        assert card.minutes_of([line(300, 240), evaluated(300, 30, 71.4)], trained().training) is None
        assert card.minutes_of([], trained().training) is None


class TestIdentity:
    def test_it_is_the_same_in_every_storage_and_another_for_another_run(self, evaluate, tmp_path):
        for storage in native.STORAGES:
            native.write(trained(), tmp_path / storage, storage=storage)
            stored = load_weights(tmp_path / storage)
            assert evaluate.identity(stored) == evaluate.identity(trained())
            assert native.storage_of(stored) == storage
        assert evaluate.identity(trained()) != evaluate.identity(trained(mean=71.50000000000001))

    @pytest.mark.parametrize("facts", [{}, {"note": "never trained"}, {"recipe": "", "update": 3}])
    def test_models_whose_facts_may_be_alike_are_told_apart_by_config_and_numbers(self, evaluate, tmp_path, facts):
        one = replace(lively(tiny()), training=facts)
        save_weights(one, tmp_path / "one")
        assert evaluate.identity(load_weights(tmp_path / "one")) == evaluate.identity(one)
        others = [lively(tiny(), seed=1), lively(tiny(cell_clip=None))]
        found = {evaluate.identity(replace(model, training=facts)) for model in (one, *others)}
        assert len(found) == 3

    def test_storage_of_a_model_without_a_head_and_of_one_in_memory(self, evaluate, tmp_path):
        native.write(lively(tiny()), tmp_path / "model", storage="float16")
        assert native.storage_of(load_weights(tmp_path / "model")) == "float16"
        assert native.storage_of(lively(tiny())) == "float32"


class TestShip:
    @pytest.fixture(autouse=True)
    def recipe_in_the_package(self, ship, monkeypatch):
        monkeypatch.setattr(ship, "find_recipe", lambda _name, _settings: recipe(1))

    def test_what_another_recipe_made_or_only_a_part_of_it_is_refused(self, ship, tmp_path):
        save_weights(trained(seed=2), tmp_path / "other")
        with pytest.raises(ModelError, match="was trained by another recipe than the package's en-small"):
            ship.checked(str(tmp_path / "other"))
        part = trained()
        save_weights(replace(part, training={**part.training, "update": 299}), tmp_path / "part")
        with pytest.raises(ModelError, match="is of update 299 of 300"):
            ship.checked(str(tmp_path / "part"))

    def test_only_float32_is_shipped(self, ship, tmp_path):
        for storage in native.STORAGES:
            native.write(trained(), tmp_path / storage, storage=storage)
            if storage == "float32":
                assert ship.checked(str(tmp_path / storage)).training == trained().training
                continue
            with pytest.raises(ModelError, match=f"is stored as {storage}, but should be as float32"):
                ship.checked(str(tmp_path / storage))

    def test_a_model_that_does_not_say_how_it_was_made_is_refused(self, ship, tmp_path):
        save_weights(replace(trained(), training={"update": 3, "recipe": ""}), tmp_path / "model")
        with pytest.raises(ModelError, match="does not say corpus, tokens_read of its training"):
            ship.checked(str(tmp_path / "model"))

    def test_one_that_is_too_large_replaces_nothing(self, ship, tmp_path, monkeypatch):
        folder = tmp_path / "shipped"
        ship.write(trained(), folder)
        assert (folder / "README.md").read_text(encoding="utf-8") == ship.card(trained())
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        least = ship.size_of(folder) - len(files["README.md"]) + ship.ROOM
        monkeypatch.setattr(ship, "MOST_BYTES", least - 1)
        with pytest.raises(ModelError, match=rf"would take {least:,} bytes, but may take {least - 1:,}"):
            ship.write(trained(), folder)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
        monkeypatch.setattr(ship, "MOST_BYTES", least)
        ship.write(trained(), folder)

    def test_what_is_shipped_is_the_model_in_int8_with_its_identity(self, ship, evaluate, tmp_path, capsys):
        save_weights(trained(), tmp_path / "model")
        ship.main(str(tmp_path / "model"), tmp_path / "shipped")
        made = load_weights(tmp_path / "shipped")
        assert (native.storage_of(made), evaluate.identity(made)) == ("int8", evaluate.identity(trained()))
        assert "perplexity" in capsys.readouterr().out
