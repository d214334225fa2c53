"""Substitutes are the likeliest words of a slow walk, the markers left out, and the marked word is found where it stands."""

import numpy as np
import pytest
from lm.reference import SENTENCES, WORDS, Walk
from models import DEVICES, lively, tiny

from elmofire import InputError, LanguageModel
from elmofire.lm.substitutes import Fillers, find_marked
from elmofire.text.tokenizers import TokenizerInfo, load_tokenizer, tokenizer_for
from elmofire.text.vocabulary import Vocabulary

WEIGHTS = lively(tiny(head=len(WORDS)), vocabulary=WORDS)
FILLERS = [number for number, word in enumerate(WORDS.words) if not word.startswith("<")]


def on(device, weights=WEIGHTS):
    return LanguageModel(weights, device=device)


def expected(weights, tokens, position, direction):
    """Log-probabilities (V,) after walking up to the place from one side."""
    forward = direction == "forward"
    walk = Walk(weights, direction)
    for token in ["<S>", *tokens[:position]] if forward else ["</S>", *tokens[:position:-1]]:
        logs = walk.read(token)
    return logs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sentence", [tokens for tokens in SENTENCES if tokens], ids=" ".join)
def test_each_direction_ranks_as_a_walk_word_by_word_does(device, sentence):
    lm = on(device)
    for position in range(len(sentence)):
        for direction in ("forward", "backward"):
            logs = expected(WEIGHTS, sentence, position, direction)
            ranked = sorted(FILLERS, key=lambda number: -logs[number])
            found = lm.substitutes(sentence, position, top=4, direction=direction)
            assert [item.word for item in found] == [WORDS.words[number] for number in ranked[:4]]
            np.testing.assert_allclose([item.log_probability for item in found], logs[ranked[:4]], rtol=1e-5, atol=2e-6)


def test_both_directions_are_added_the_unigram_taken_off_and_the_fillers_share_a_probability_of_one():
    sentence = SENTENCES[0]
    found = on("cpu").substitutes(sentence, 2, top=100)
    forward, backward = (expected(WEIGHTS, sentence, 2, direction) for direction in ("forward", "backward"))
    ranks = np.arange(len(WORDS))
    unigram = np.log(np.log((ranks + 2) / (ranks + 1)) / np.log(len(WORDS) + 1))
    scores = {WORDS.words[n]: forward[n] + backward[n] - unigram[n] for n in FILLERS}
    assert [item.word for item in found] == sorted(scores, key=lambda word: -scores[word])
    assert np.exp([item.log_probability for item in found]).sum() == pytest.approx(1)
    differences = {item.word: item.log_probability - scores[item.word] for item in found}
    assert max(differences.values()) == pytest.approx(min(differences.values()), abs=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_the_word_that_stands_there_does_not_matter(direction):
    lm = on("cpu")
    one, other = (lm.substitutes(["the", word, "sat"], 1, direction=direction) for word in ("cat", "never-seen"))
    assert [item.word for item in one] == [item.word for item in other]
    np.testing.assert_allclose(
        [item.log_probability for item in one], [item.log_probability for item in other], rtol=1e-5, atol=2e-6
    )


def test_a_repeated_word_is_listed_once_and_a_blank_one_never():
    words = Vocabulary([*WORDS.words, "cat", ""])
    lm = on("cpu", lively(tiny(head=len(words)), vocabulary=words))
    found = [item.word for item in lm.substitutes(["the", "cat"], 1, top=100)]
    assert sorted(found) == sorted(set(WORDS.words[3:]))


def test_words_that_are_equally_likely_keep_the_vocabularys_order():
    fillers = Fillers(WORDS, start="<S>", end="</S>")
    assert [item.word for item in fillers.best(np.zeros(len(WORDS)), 3)] == ["the", "cat", "sat"]


def test_a_vocabulary_of_markers_alone_has_no_substitutes():
    words = Vocabulary(WORDS.words[:3])
    assert on("cpu", lively(tiny(head=3), vocabulary=words)).substitutes(["the"], 0) == []


def test_a_marked_string_is_the_same_as_tokens_and_a_position():
    lm = on("cpu")
    tokens = ["The", "cat", ",", "it", "seems", ",", "sat", "."]
    assert lm.substitutes("The *cat*, it seems, sat.") == lm.substitutes(tokens, 1)
    assert lm.substitutes("The cat, it seems, sat.", 1) == lm.substitutes(tokens, 1)


@pytest.mark.parametrize(
    ("text", "tokens", "position"),
    [
        ("*The* cat", ["The", "cat"], 0),
        ("the cat.*.*", None, None),
        ("I do*n't* know", ["I", "do", "n't", "know"], 2),
        ("5 * 3 is *fifteen*.", ["5", "*", "3", "is", "fifteen", "."], 4),
        ("日本語 *mat*", ["日本語", "mat"], 1),
        ("an e\u0301 and a *cat*", ["an", "e\u0301", "and", "a", "cat"], 4),
    ],
)
def test_the_marked_token_is_found_where_it_stands(text, tokens, position):
    if tokens is None:
        with pytest.raises(InputError, match="not one token here"):
            find_marked(text, tokenizer_for("en"))
    else:
        assert find_marked(text, tokenizer_for("en")) == (tokens, position)


def test_text_that_is_tokenized_already_is_split_at_spaces():
    whitespace = load_tokenizer(TokenizerInfo("whitespace", "", 1))
    assert find_marked("do *n't* go-there", whitespace) == (["do", "n't", "go-there"], 1)
    with pytest.raises(InputError, match=r"'cat' is not one token here: there stands cat,"):
        find_marked("the *cat*, sat", whitespace)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no mark", "no single word is marked"),
        ("", "no single word is marked"),
        ("**", "no single word is marked"),
        ("*two words*", "no single word is marked"),
        ("*one* and *two*", "2 words are marked"),
        ("I *don't* know", "is not one token here: there stands do n't"),
    ],
)
def test_a_mark_that_is_not_one_token_is_an_error(text, said):
    with pytest.raises(InputError, match=said):
        find_marked(text, tokenizer_for("en"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"position": 2}, "position is 2, but should be one of the sentence's 2 tokens"),
        ({"position": 1.0}, "position is 1.0, but should be one of the sentence's 2 tokens"),
        ({"position": True}, "position is True"),
        ({"position": np.float32(1)}, "but should be one of the sentence's 2 tokens"),
        ({"position": -1}, "position is -1"),
        ({}, "needs position="),
        ({"position": "1"}, "position is '1'"),
        ({"position": 0, "top": 0}, "top is 0"),
        ({"position": 0, "top": "3"}, "top is '3'"),
        ({"position": 0, "direction": "sideways"}, "direction is 'sideways'"),
    ],
)
def test_what_cannot_be_asked_is_an_error(arguments, said):
    with pytest.raises(InputError, match=said):
        on("cpu").substitutes(["the", "cat"], **arguments)


def test_a_model_of_one_direction_has_no_both():
    weights = lively(tiny(head=len(WORDS), directions=("forward",)), vocabulary=WORDS)
    lm = on("cpu", weights)
    assert len(lm.substitutes(["the", "cat"], 1, direction="forward")) == len(FILLERS)
    with pytest.raises(InputError, match="'both', but should be one of forward"):
        lm.substitutes(["the", "cat"], 1)
