"""Scores are what walking a sentence word by word gives, and what the rules of probability ask for."""

import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm.reference import SENTENCES, WORDS, Walk, walked, walked_lanes
from models import DEVICES, lively, tiny, words_only

from elmofire import InputError, LanguageModel, ModelError
from elmofire.text.vocabulary import Vocabulary


def model(config=None, vocabulary=WORDS, **changes):
    config = config or tiny(head=len(vocabulary), **changes)
    return lively(config, vocabulary=vocabulary)


def on(device, weights):
    """On the CPU engine, or in torch, whose CPU is a device with a number."""
    return LanguageModel(weights, device=device)


MODELS = {
    "characters": model(),
    "three layers without residual": model(layers=3, skip_connections=False),
    "no projection": model(lstm_projection=False, cells=6),
    "whole words": model(words_only(len(WORDS), head=len(WORDS))),
    "wide encoder": model(encoder_width=9),
}


class TestAgainstTheDefinition:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("name", MODELS)
    def test_scores_are_those_of_a_walk_word_by_word(self, name, device):
        for tokens, score in zip(SENTENCES, on(device, MODELS[name]).score(SENTENCES), strict=True):
            assert score.tokens == tokens
            np.testing.assert_allclose(score.forward, walked(MODELS[name], tokens, "forward"), rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(score.backward, walked(MODELS[name], tokens, "backward"), rtol=1e-5, atol=2e-6)
            assert score.forward_total == pytest.approx(sum(score.forward))
            assert score.backward_total == pytest.approx(sum(score.backward))

    def test_a_word_that_the_vocabulary_lacks_is_scored_as_unknown_but_read_as_it_is_spelled(self):
        lm = on("cpu", MODELS["characters"])
        one, other = lm.score([["the", "dog", "sat"], ["the", "cow", "sat"]])
        assert one.unknown == [False, True, False]
        assert one.forward[1] == pytest.approx(other.forward[1], rel=1e-5)  # <UNK> after the same word
        assert one.forward[2] != pytest.approx(other.forward[2], rel=1e-5)  # after different spellings

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_a_model_of_one_direction_scores_that_one(self, direction):
        weights = model(directions=(direction,))
        lm = on("cpu", weights)
        score = lm.score([SENTENCES[0]])[0]
        found, lacking = (score.forward, score.backward) if direction == "forward" else (score.backward, score.forward)
        assert lacking is None
        np.testing.assert_allclose(found, walked(weights, SENTENCES[0], direction), rtol=1e-5, atol=2e-6)
        for perplexity in (lm.perplexity(SENTENCES), lm.perplexity(SENTENCES, lanes=2)):
            assert perplexity.mean == getattr(perplexity, direction)
            assert (perplexity.forward is None) is (direction == "backward")

    def test_a_word_that_stands_twice_in_the_vocabulary_is_scored_by_its_last_row(self):
        twice = Vocabulary([*WORDS.words, "cat"])
        weights = model(vocabulary=twice)
        score = on("cpu", weights).score([["cat"]])[0]
        assert score.forward[0] == pytest.approx(Walk(weights, "forward").read("<S>")[len(WORDS)], rel=1e-5)


class TestProbability:
    @pytest.mark.parametrize("device", DEVICES)
    def test_the_words_that_can_follow_and_the_end_share_a_probability_of_one(self, device):
        lm = on(device, MODELS["characters"])
        others = ["<S>", "neverheard", *WORDS.words[3:]]
        scores = lm.score([["the", "cat", word] for word in others])
        ending = lm.score([["the", "cat"]])[0]
        assert sum(math.exp(score.forward[2]) for score in scores) + math.exp(ending.forward[2]) == pytest.approx(1)
        scores = lm.score([[word, "the", "cat"] for word in ["</S>", *others[1:]]])
        assert sum(math.exp(score.backward[1]) for score in scores) + math.exp(ending.backward[0]) == pytest.approx(1)

    def test_all_sentences_up_to_a_length_and_all_longer_beginnings_have_a_probability_of_one(self):
        words = Vocabulary(["<S>", "</S>", "<UNK>", "a", "b"])
        lm = on("cpu", model(vocabulary=words))
        can_stand = ["<S>", "unheard", "a", "b"]  # <S> is never predicted in text, yet it has a row
        whole = [list(s) for n in range(4) for s in itertools.product(can_stand, repeat=n)]
        longer = [list(s) for s in itertools.product(can_stand, repeat=4)]
        ended = math.fsum(math.exp(score.forward_total) for score in lm.score(whole))
        begun = math.fsum(math.exp(sum(score.forward[:-1])) for score in lm.score(longer))
        assert 0.01 < ended < 0.99
        assert ended + begun == pytest.approx(1, rel=1e-5)

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(st.sampled_from([*WORDS.words[3:], "new"]), max_size=5),
        st.lists(st.sampled_from([*WORDS.words[3:], "new"]), max_size=5),
        st.lists(st.sampled_from([*WORDS.words[3:], "new"]), max_size=5),
    )
    def test_neither_direction_knows_what_it_has_not_read(self, shared, one, other):
        lm = on("cpu", MODELS["characters"])
        left, right = lm.score([shared + one, shared + other])
        np.testing.assert_allclose(left.forward[: len(shared)], right.forward[: len(shared)], rtol=1e-5, atol=2e-6)
        left, right = lm.score([one + shared, other + shared])
        # The start of the sentence is counted among the scores, so the last so many are those of the shared words.
        first, second = (score.backward[len(score.backward) - len(shared) :] for score in (left, right))
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=2e-6)

    def test_a_sentence_scores_the_same_alone_and_among_others(self):
        lm = on("cpu", MODELS["characters"])
        alone = [lm.score([tokens])[0] for tokens in SENTENCES]
        many = SENTENCES * 500  # several blocks of the softmax
        for number, score in enumerate(lm.stream(iter(many))):
            expected = alone[number % len(SENTENCES)]
            assert score.tokens == expected.tokens
            np.testing.assert_allclose(score.forward, expected.forward, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(score.backward, expected.backward, rtol=1e-5, atol=2e-6)
        assert number == len(many) - 1


class TestPerplexity:
    @pytest.mark.parametrize("device", DEVICES)
    def test_every_word_and_far_boundary_counts(self, device):
        weights = MODELS["characters"]
        found = on(device, weights).perplexity(SENTENCES)
        logs = {d: [log for tokens in SENTENCES for log in walked(weights, tokens, d)] for d in ("forward", "backward")}
        assert found.events == len(logs["forward"]) == sum(len(tokens) + 1 for tokens in SENTENCES)
        assert found.forward == pytest.approx(math.exp(-np.mean(logs["forward"])), rel=1e-5)
        assert found.backward == pytest.approx(math.exp(-np.mean(logs["backward"])), rel=1e-5)
        assert found.mean == pytest.approx(math.sqrt(found.forward * found.backward), rel=1e-9)
        assert found.unknown == 3 / 13
        assert "zero state at each sentence" in found.convention

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("lanes", [1, 2, 3, 5])
    @pytest.mark.parametrize("batch_tokens", [1, 7, 4096])
    def test_lanes_carry_their_state_and_drop_the_tail(self, device, lanes, batch_tokens):
        weights, text = MODELS["characters"], SENTENCES * 2
        lm = on(device, weights)
        lm.embedder.batch_tokens = batch_tokens
        found = lm.perplexity(text, lanes=lanes)
        for direction in ("forward", "backward"):
            perplexity, events = walked_lanes(weights, text, lanes, direction)
            assert getattr(found, direction) == pytest.approx(perplexity, rel=1e-5)
            assert found.events == events
        assert f"lanes as in 2018: {lanes}," in found.convention

    def test_one_lane_counts_the_unknown_words_as_sentences_do(self):
        lm = on("cpu", MODELS["characters"])
        assert lm.perplexity(SENTENCES, lanes=1).unknown == lm.perplexity(SENTENCES).unknown

    @pytest.mark.parametrize("directions", [("forward", "backward"), ("backward",)], ids=" ".join)
    def test_a_long_token_is_counted_once_in_lanes_too(self, directions):
        lm = on("cpu", model(directions=directions))
        lm.perplexity([["the", "incomprehensibly", "cat"], ["the", "incomprehensibly"]], lanes=1)
        assert lm.embedder.truncated == 2

    def test_empty_sentences_count_their_boundary(self):
        found = on("cpu", MODELS["characters"]).perplexity([[], []])
        assert (found.events, found.unknown) == (2, 0.0)

    @pytest.mark.parametrize(("sentences", "lanes"), [([], None), ([], 1), (SENTENCES, 6), (SENTENCES, 10**12)])
    def test_nothing_to_count_is_an_error(self, sentences, lanes):
        with pytest.raises(InputError, match=r"no sentences|fewer sentences"):
            on("cpu", MODELS["characters"]).perplexity(sentences, lanes=lanes)

    def test_no_lanes_are_an_error(self):
        for lanes in (0, "2"):
            with pytest.raises(InputError, match=f"lanes is {lanes!r}"):
                on("cpu", MODELS["characters"]).perplexity(SENTENCES, lanes=lanes)

    def test_nothing_scores_as_nothing(self):
        assert on("cpu", MODELS["characters"]).score([]) == []


class TestWhatCannotScore:
    def test_a_model_without_a_head(self):
        with pytest.raises(ModelError, match=r"no language-model head.*\n.*TensorFlow checkpoint"):
            LanguageModel(lively(tiny(), vocabulary=WORDS))

    def test_a_model_without_a_vocabulary(self):
        with pytest.raises(ModelError, match=r"10 rows, but no vocabulary.*\n.*vocab=FILE.*--vocab FILE"):
            LanguageModel(replace(MODELS["characters"], vocabulary=None))

    def test_a_vocabulary_of_another_size(self):
        with pytest.raises(ModelError, match="has 9 words, but the model's head has 10 rows"):
            LanguageModel(replace(MODELS["characters"], vocabulary=Vocabulary(WORDS.words[:-1])))

    def test_a_vocabulary_without_boundaries(self):
        words = Vocabulary([word.strip("<>") for word in WORDS.words])
        with pytest.raises(ModelError, match="no </S> and no <S>"):
            LanguageModel(replace(MODELS["characters"], vocabulary=words))

    def test_an_unknown_word_where_the_vocabulary_has_no_place_for_it(self):
        words = Vocabulary(["unk" if word == "<UNK>" else word for word in WORDS.words])
        lm = LanguageModel(replace(MODELS["characters"], vocabulary=words), device="cpu")
        assert len(lm.score([["the", "cat"]])[0].forward) == 3
        with pytest.raises(InputError, match="'dog' is not in the model's vocabulary"):
            lm.score([["the", "dog"]])

    def test_it_says_that_it_is_not_pickled(self):
        with pytest.raises(TypeError, match="load it where it is needed"):
            pickle.dumps(on("cpu", MODELS["characters"]))
