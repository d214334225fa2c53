"""The linear probe against the optimum that a slow solver finds, and what it must not depend on."""

import lzma

import numpy as np
import pytest
import torch
from models import SHARED

from elmofire.analysis.probe import GRID, Part, Settings, probe, standardized
from elmofire.analysis.treebank import numbered_tags, read_tagged, tag_numbers
from elmofire.errors import DataError, InputError
from elmofire.tasks.tagging import TaggedSentence

TREEBANK = SHARED / "data/tasks/ud"


def part(seed: int, sentences: int, *, noise: float = 1.0, width: int = 6, tags: int = 4) -> Part:
    """Tokens whose vectors are their tag's place and noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, sentences)
    wanted = rng.integers(0, tags, lengths.sum())
    places = np.random.default_rng(99).standard_normal((tags, width))
    vectors = places[wanted] + noise * rng.standard_normal((len(wanted), width))
    return Part(vectors.astype(np.float32), wanted, lengths)


def best_linear(train: Part, decay: float) -> np.ndarray:
    """The weights (width + 1, tags) of multinomial logistic regression by Newton's method, in float64."""
    x = np.concatenate([np.ones((len(train.vectors), 1)), train.vectors], axis=1)
    n, width, tags = len(x), x.shape[1], int(train.tags.max()) + 1
    weights = np.zeros((width, tags))
    for _ in range(12):
        scores = x @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        slope = x.T @ (chances - np.eye(tags)[train.tags]) / n + decay * weights
        pairs = chances[:, :, None] * (np.eye(tags) - chances[:, None])
        curve = np.einsum("ni,nj,ncd->icjd", x, x, pairs, optimize=True).reshape(width * tags, -1) / n
        weights -= np.linalg.solve(curve + decay * np.eye(width * tags), slope.ravel()).reshape(weights.shape)
    assert np.abs(slope).max() < 1e-10
    return weights


def test_it_predicts_what_the_exact_solution_predicts():
    """Dev and test are tagged by the exact solution itself, so that dev prefers the epoch that is nearest to it."""
    train, settings = part(1, 400), Settings(rate=0.02, decay=0.01)
    weights = best_linear(train, settings.decay)
    dev, test = (
        one._replace(tags=(one.vectors @ weights[1:] + weights[0]).argmax(axis=1))
        for one in (part(2, 400), part(3, 400))
    )
    found = probe(train, dev, test, seed=0, grid=[settings], epochs=150)
    right, tokens = found.test.sum(axis=0)
    assert right >= 0.995 * tokens
    np.testing.assert_array_equal(found.test[:, 1], test.lengths)
    by_chance = probe(train, dev, test, seed=0, grid=[Settings(rate=1e-9, decay=0.0)], epochs=1)
    assert by_chance.test[:, 0].sum() < 0.8 * tokens


def test_the_same_seed_gives_the_same_counts_and_another_one_another_probe():
    train, dev, test = part(1, 300, noise=2.0), part(2, 60, noise=2.0), part(3, 300, noise=2.0)
    one, again, other = (probe(train, dev, test, seed=seed, epochs=2) for seed in (1, 1, 2))
    assert one.settings == again.settings
    np.testing.assert_array_equal(one.test, again.test)
    assert (one.test != other.test).any()


def test_the_callers_own_random_numbers_are_left_alone():
    state = torch.random.get_rng_state()
    probe(part(1, 20), part(2, 5), part(3, 5), seed=3, epochs=1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_points_of_the_grid_do_not_disturb_each_other_and_dev_chooses():
    train, dev, test = part(1, 400), part(2, 200), part(3, 200)
    good, useless = GRID[-1], Settings(rate=1e-9, decay=0.0)
    alone = probe(train, dev, test, seed=5, grid=[good], epochs=20)
    for grid in ([good, useless, useless], [useless, good]):
        found = probe(train, dev, test, seed=5, grid=grid, epochs=20)
        assert (found.settings, found.epoch) == (good, alone.epoch)
        np.testing.assert_array_equal(found.test, alone.test)
    assert alone.test[:, 0].sum() > 1.2 * probe(train, dev, test, seed=5, grid=[useless], epochs=1).test[:, 0].sum()


def test_the_test_part_has_no_say():
    train, dev, test = part(1, 200, noise=2.0), part(2, 80, noise=2.0), part(3, 80, noise=2.0)
    turned = test._replace(tags=(test.tags + 1) % 4)
    one, other = probe(train, dev, test, seed=0, epochs=5), probe(train, dev, turned, seed=0, epochs=5)
    assert (one.settings, one.epoch) == (other.settings, other.epoch)
    np.testing.assert_array_equal(one.dev, other.dev)


def test_a_tag_that_training_lacks_is_never_right():
    train, dev, test = part(1, 100), part(2, 20), part(3, 50)
    unseen = test._replace(tags=np.full_like(test.tags, -1))
    assert probe(train, dev, unseen, seed=0, epochs=1).test[:, 0].sum() == 0
    with pytest.raises(InputError, match="without a number"):
        probe(unseen, dev, test, seed=0, epochs=1)


def test_vectors_tags_and_sentences_must_agree():
    good = part(1, 10)
    with pytest.raises(InputError, match="one vector and one tag"):
        probe(good, good._replace(tags=good.tags[1:]), good, seed=0)
    with pytest.raises(InputError, match="one vector and one tag"):
        probe(good, good, good._replace(lengths=good.lengths + 1), seed=0)


def test_a_part_without_tokens_is_named():
    good = part(1, 10)
    empty = Part(good.vectors[:0], good.tags[:0], good.lengths[:0])
    for name, parts in {"train": (empty, good), "dev": (good, empty), "test": (good, good, empty)}.items():
        with pytest.raises(InputError, match=f"{name}: has no tokens"):
            probe(*parts, seed=0)


def test_vectors_of_another_width_are_refused():
    with pytest.raises(InputError, match=r"dev: vectors of the shape .*\(tokens, 6\)"):
        probe(part(1, 10), part(2, 10, width=5), seed=0)


def test_numbers_of_any_type_are_the_same_to_it():
    train, dev, test = part(1, 60), part(2, 20), part(3, 20)
    narrow = probe(train, dev, test, seed=1, epochs=2)
    wide = [
        one._replace(vectors=one.vectors.astype(np.float64), tags=one.tags.astype(np.int32))
        for one in (train, dev, test)
    ]
    np.testing.assert_array_equal(probe(*wide, seed=1, epochs=2).test, narrow.test)
    scaled = standardized(train.vectors.astype(np.float64), 50)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, standardized(train.vectors, 50), rtol=1e-5, atol=1e-6)


def test_without_a_test_part_the_choice_is_the_same():
    train, dev, test = part(1, 60), part(2, 20), part(3, 20)
    trial, whole = probe(train, dev, seed=1, epochs=3), probe(train, dev, test, seed=1, epochs=3)
    assert trial.test is None
    assert (trial.settings, trial.epoch, trial.edges) == (whole.settings, whole.epoch, whole.edges)
    np.testing.assert_array_equal(trial.dev, whole.dev)


def test_a_choice_at_the_edge_of_the_grid_is_told():
    train, dev = part(1, 200), part(2, 100)
    useless, good = Settings(rate=1e-9, decay=0.0), Settings(rate=0.02, decay=0.0)
    useful_decay = Settings(rate=0.02, decay=1e-4)
    ruined = Settings(rate=0.02, decay=1e3)
    found = {
        name: probe(train, dev, seed=0, grid=grid, epochs=6)
        for name, grid in {
            "inside": [useless, good, Settings(rate=1.0, decay=1e3)],
            "rate": [useless, good],
            "both": [useless, useful_decay],
            "between": [useless, useful_decay, ruined],
        }.items()
    }
    assert {name: done.settings.rate for name, done in found.items()} == dict.fromkeys(found, 0.02)
    edges = {name: set(done.edges) - {"last epoch"} for name, done in found.items()}
    assert edges == {
        "inside": set(),
        "rate": {"highest rate"},
        "both": {"highest rate", "highest decay"},
        "between": {"highest rate"},
    }
    for done in found.values():
        assert ("last epoch" in done.edges) == (done.epoch == 6)
    assert "last epoch" in probe(train, dev, seed=0, epochs=1).edges


def test_only_training_tokens_set_the_scale():
    rng = np.random.default_rng(4)
    vectors = (rng.standard_normal((500, 7)) * rng.uniform(0.01, 100, 7) + rng.uniform(-9, 9, 7)).astype(np.float32)
    vectors[:, 3] = 5.0
    found = standardized(vectors, 400)
    np.testing.assert_allclose(found[:400].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.delete(found[:400].std(axis=0), 3), 1, rtol=1e-4)
    assert (found[:, 3] == 0).all()
    changed = vectors.copy()
    changed[400:] *= 3
    np.testing.assert_array_equal(standardized(changed, 400)[:400], found[:400])


# ── the treebank ────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = """\
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\t_\tPRON\tPRP\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

1\tNow\tnow\tADV\tRB\t_\t0\troot\t_\t_
"""


def test_words_and_tags_stay_together_without_ranges_and_empty_nodes(tmp_path):
    plain, packed = tmp_path / "some.conllu", tmp_path / "some.conllu.xz"
    plain.write_text(ROWS)
    packed.write_bytes(lzma.compress(ROWS.encode()))
    expected = [TaggedSentence(["Do", "n't", "go"], ["VB", "RB", "VB"]), TaggedSentence(["Now"], ["RB"])]
    assert read_tagged(str(plain)) == read_tagged(str(packed)) == expected
    assert read_tagged(str(plain), "upos")[0].tags == ["AUX", "PART", "VERB"]
    numbers = tag_numbers(expected[:1])
    assert numbers == {"RB": 0, "VB": 1}
    assert numbered_tags([TaggedSentence(["Oh", "now"], ["UH", "RB"])], numbers).tolist() == [-1, 0]


def test_a_word_without_a_tag_is_named_by_its_line(tmp_path):
    file = tmp_path / "some.conllu"
    file.write_text(ROWS.replace("\tPART\tRB", "\tPART\t_"))
    with pytest.raises(DataError, match=r"some\.conllu:4: the word has no XPOS tag"):
        read_tagged(str(file))


@pytest.mark.skipif(not TREEBANK.is_dir(), reason=f"the treebanks are not at {TREEBANK}")
def test_the_treebank_has_the_published_number_of_words():
    sentences = read_tagged(str(TREEBANK / "en_ewt-ud-dev.conllu.xz"))
    assert len(sentences) == 2001
    assert sum(len(tokens) for tokens, _ in sentences) == sum(len(tags) for _, tags in sentences) == 25_147
