"""Which usages of a word are nearest to which, against a slow loop and identities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import lively, tiny

from elmofire import Embedder, InputError
from elmofire.analysis.usages import Nearest, Usage, find_usage, nearest, plane, same_sense, usage_vectors
from elmofire.text.tokenizers import tokenizer_for

SENTENCES = {
    "theater": "We saw a new *play*, and we liked it.",
    "sport": "They *play* in the cup final today.",
    "children": "Let the boys *play*!",
}


@pytest.fixture(scope="module")
def usages():
    return [find_usage(marked, sense, tokenizer_for("en")) for sense, marked in SENTENCES.items()]


@pytest.fixture(scope="module")
def elmo():
    return Embedder(lively(tiny()), device="cpu")


def cosine(x, y) -> float:
    product = sum(float(a) * float(b) for a, b in zip(x, y, strict=True))
    return product / math.sqrt(sum(float(a) ** 2 for a in x) * sum(float(b) ** 2 for b in y))


class TestUsages:
    def test_a_usage_is_the_marked_token_of_its_sentence(self, usages):
        assert [usage.word for usage in usages] == ["play"] * 3
        assert usages[0].tokens == ("We", "saw", "a", "new", "play", ",", "and", "we", "liked", "it", ".")
        assert [usage.sentence for usage in usages] == [marked.replace("*", "") for marked in SENTENCES.values()]

    @given(words=st.lists(st.text("ab,", min_size=1, max_size=5), min_size=1, max_size=9), data=st.data())
    def test_a_context_is_whole_words_as_many_as_fit(self, words, data):
        at = data.draw(st.integers(0, len(words) - 1))
        left, right = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
        usage = Usage((words[at],), 0, "", " ".join([*words[:at], ""]), " ".join(["", *words[at + 1 :]]))
        before, after = usage.context(left, right)
        fitting = [words[first:at] for first in range(at + 1) if len(" ".join([*words[first:at], ""])) <= left]
        assert before.split() == max(fitting, key=len, default=[])
        fitting = [words[at + 1 : last] for last in range(at + 1, len(words) + 1)]
        fitting = [some for some in fitting if len(" ".join(["", *some])) <= right]
        assert after.split() == max(fitting, key=len, default=[])

    def test_vectors_are_the_marked_words_at_every_layer(self, usages, elmo):
        vectors = usage_vectors(elmo, usages)
        assert vectors.shape == (3, 3, elmo.config.width)
        for number, usage in enumerate(usages):
            alone = elmo.embed([list(usage.tokens)], layers="all")[0][:, usage.position]
            np.testing.assert_allclose(vectors[:, number], alone, rtol=1e-5, atol=1e-6)

    def test_layer_0_holds_all_usages_of_a_form_for_alike_and_the_others_do_not(self, usages, elmo):
        context_free, *contextual = usage_vectors(elmo, usages)
        for number, found in enumerate(nearest(context_free)):
            assert found.which == tuple(other for other in range(3) if other != number)
            assert found.cosine == pytest.approx(1)
        for layer in contextual:
            assert all(len(found.which) == 1 and found.cosine < 0.9999 for found in nearest(layer))


class TestNearest:
    @given(seed=st.integers(0, 999), usages=st.integers(2, 7), width=st.integers(2, 5))
    def test_it_is_the_one_a_slow_loop_finds(self, seed, usages, width):
        vectors = np.random.default_rng(seed).standard_normal((usages, width))
        for number, found in enumerate(nearest(vectors)):
            by_hand = {n: cosine(vectors[number], other) for n, other in enumerate(vectors) if n != number}
            best = max(by_hand.values())
            assert found.cosine == pytest.approx(best)
            assert found.which == tuple(n for n, value in by_hand.items() if value > best - 1e-6)

    def test_lengths_do_not_matter_and_no_vector_is_near_itself(self):
        found = nearest(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 5.0], [0.0, 0.0]]))
        assert [each.which for each in found[:3]] == [(1,), (0,), (1,)]
        assert found[3].cosine == 0

    def test_one_usage_has_no_nearest_other(self):
        with pytest.raises(InputError, match="there are 1 usages"):
            nearest(np.ones((1, 4)))


class TestSenses:
    def test_clusters_by_sense_agree_fully_and_clusters_by_something_else_do_not(self):
        rng = np.random.default_rng(1)
        centers = rng.standard_normal((3, 20))
        senses = ["a", "a", "b", "b", "c", "c"]
        by_sense = np.repeat(centers, 2, axis=0) + 0.05 * rng.standard_normal((6, 20))
        assert same_sense(nearest(by_sense), senses) == 6
        crossed = np.tile(centers, (2, 1)) + 0.05 * rng.standard_normal((6, 20))
        assert same_sense(nearest(crossed), senses) == 0

    @given(st.lists(st.sampled_from("ab"), min_size=2, max_size=8))
    def test_where_all_are_alike_it_is_what_chance_gives(self, senses):
        alike = [Nearest(1.0, tuple(m for m in range(len(senses)) if m != n)) for n in range(len(senses))]
        pairs = [(a, b) for a in range(len(senses)) for b in range(len(senses)) if a != b]
        chance = sum(senses[a] == senses[b] for a, b in pairs) / len(pairs)
        assert same_sense(alike, senses) == pytest.approx(len(senses) * chance)


class TestPlane:
    def test_vectors_of_two_dimensions_keep_their_distances(self):
        rng = np.random.default_rng(2)
        flat = rng.standard_normal((6, 2))
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        turned = flat @ np.linalg.qr(rng.standard_normal((9, 2)))[0].T
        seen = plane(3 * turned)
        assert seen.share == pytest.approx(1)
        for a in range(6):
            for b in range(6):
                assert math.dist(seen.places[a], seen.places[b]) == pytest.approx(math.dist(flat[a], flat[b]))

    def test_the_share_is_that_of_the_largest_two_eigenvalues(self):
        vectors = np.random.default_rng(3).standard_normal((7, 12))
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        eigenvalues = np.linalg.eigvalsh(np.cov(unit.T))
        assert plane(vectors).share == pytest.approx(eigenvalues[-2:].sum() / eigenvalues.sum())

    def test_equal_vectors_are_one_point_and_two_lie_on_a_line(self):
        assert not plane(np.ones((4, 5))).places.any()
        two = plane(np.eye(2)).places
        np.testing.assert_allclose(two[:, 1], 0, atol=1e-12)
        assert math.dist(*two) == pytest.approx(math.sqrt(2))

    def test_the_picture_does_not_flip_with_the_signs_of_the_decomposition(self):
        vectors = np.random.default_rng(4).standard_normal((6, 8))
        np.testing.assert_allclose(plane(vectors).places, plane(vectors[:, ::-1]).places, atol=1e-9)
