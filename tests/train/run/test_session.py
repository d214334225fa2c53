"""What a run says about itself to those who get its model, and what it needs of its corpus."""

from dataclasses import replace

import pytest
import torch
from train.run.small_runs import RECIPES

from elmofire.errors import DataError, RecipeError
from elmofire.text.vocabulary import Vocabulary
from elmofire.train.corpus.reader import Corpus
from elmofire.train.run.ranks import Ranks
from elmofire.train.run.session import Session, suited

ALONE = Ranks(0, 1, torch.device("cpu"))


def test_a_models_facts_name_files_and_no_folders(corpus):
    opened = Corpus.open(corpus)
    opened.table["report"] |= {
        "overlaps": [
            {"file": "/home/me/secret/test.txt", "sentences": 3, "ngrams": 4},
            {"file": "hf:some/set@test", "sentences": 0, "ngrams": 9},
        ],
        "long_sentences": {"sentences": 1, "first": "/home/me/secret/train.txt:17"},
    }
    facts = Session(RECIPES["sentences"], opened, ALONE).facts()
    report = facts["corpus"]["report"]
    assert [check["file"] for check in report["overlaps"]] == ["test.txt", "hf:some/set@test"]
    assert report["long_sentences"] == {"sentences": 1, "first": "train.txt:17"}
    assert report["overlaps"][0]["ngrams"] == 4
    assert "secret" not in str(facts)
    assert opened.table["report"]["overlaps"][0]["file"] == "/home/me/secret/test.txt"  # the corpus keeps its own


def test_a_held_out_split_that_is_not_there_is_told_with_a_way_out(corpus):
    recipe = replace(RECIPES["sentences"], train=replace(RECIPES["sentences"].train, evaluate_on="dev"))
    with pytest.raises(RecipeError, match=r"'dev', but the corpus has heldout\nhint: train.evaluate_on=none"):
        Session(recipe, Corpus.open(corpus), ALONE)


def test_words_that_are_not_by_frequency_are_not_sampled(corpus):
    opened = Corpus.open(corpus)
    recipe = RECIPES["sentences-sampled"]
    assert suited(recipe, opened)[0].loss.softmax == "sampled"
    opened.table["report"]["words"] |= {"vocabulary_order": 0.18, "vocabulary_seen": 5000}
    with pytest.raises(
        RecipeError, match=r"not sorted by the words' frequency in its text\nhint: loss.softmax=full, or"
    ):
        suited(recipe, opened)
    assert suited(recipe, opened, fine_tuned=True) == (
        recipe,
        [],
    )  # its words are those of the model, whatever the text
    full = replace(recipe, loss=replace(recipe.loss, softmax="full"))
    assert suited(full, opened) == (full, [])


def test_a_model_of_other_words_is_told_with_the_folder_to_remove(corpus):
    opened = Corpus.open(corpus)
    weights = Session(RECIPES["sentences"], opened, ALONE).bilm.weights()
    other = replace(weights, vocabulary=Vocabulary([*weights.vocabulary.words[:-1], "other"]))
    with pytest.raises(DataError, match=rf"does not predict the words of .*\n.*finetune.* when {corpus} is removed"):
        Session(RECIPES["sentences"], opened, ALONE, start=other)
