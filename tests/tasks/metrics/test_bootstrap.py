"""The paired bootstrap against a slow loop, against the variance known in closed form, and by how often it is right."""

import numpy as np
import pytest

from elmofire.errors import InputError
from elmofire.tasks.metrics.bootstrap import accuracy, paired_bootstrap, span_f1


def tagged(rng: np.random.Generator, seeds: int, sentences: int, chance: float, lengths: np.ndarray) -> np.ndarray:
    return np.stack([rng.binomial(lengths, chance, (seeds, sentences)), np.tile(lengths, (seeds, 1))], axis=2)


def spans(rng: np.random.Generator, seeds: int, sentences: int) -> np.ndarray:
    right = rng.integers(0, 3, (seeds, sentences))
    return np.stack([right, right + rng.integers(0, 2, right.shape), right + rng.integers(0, 3, right.shape)], axis=2)


def slow_f1(counts: np.ndarray) -> float:
    right, predicted, gold = counts
    return 2 * right / (predicted + gold) if predicted + gold else 0.0


def test_it_is_a_loop_over_resamples_seeds_and_sentences():
    rng = np.random.default_rng(5)
    first, second = spans(rng, 3, 23), spans(rng, 2, 23)
    draws = np.random.default_rng(11)
    differences = []
    for _ in range(400):
        drawn = draws.integers(23, size=23)
        scores = [[slow_f1(sum(counts[n] for n in drawn)) for counts in system] for system in (first, second)]
        differences.append(np.mean(scores[0]) - np.mean(scores[1]))
    observed = [np.mean([slow_f1(counts.sum(axis=0)) for counts in system]) for system in (first, second)]
    found = paired_bootstrap(first, second, span_f1, resamples=400, seed=11)
    assert found == pytest.approx((observed[0] - observed[1], *np.quantile(differences, [0.025, 0.975])), abs=1e-12)


def test_blocks_do_not_change_a_result(monkeypatch):
    rng = np.random.default_rng(6)
    first, second = spans(rng, 2, 40), spans(rng, 2, 40)
    whole = paired_bootstrap(first, second, span_f1, resamples=101)
    monkeypatch.setattr("elmofire.tasks.metrics.bootstrap._DRAWN", 40 * 7)
    assert paired_bootstrap(first, second, span_f1, resamples=101) == whole


def test_the_interval_has_the_width_known_in_closed_form():
    """With one token a sentence the resampled difference is a mean of n draws from the observed ones: its variance is theirs / n."""
    rng = np.random.default_rng(7)
    lengths = np.ones(3000, dtype=int)
    first, second = tagged(rng, 4, 3000, 0.9, lengths), tagged(rng, 4, 3000, 0.8, lengths)
    per_sentence = (first - second)[..., 0].mean(axis=0)
    error = per_sentence.std() / 3000**0.5
    found = paired_bootstrap(first, second, accuracy, seed=1)
    assert found.difference == pytest.approx(per_sentence.mean(), abs=1e-12)
    # 10,000 draws place a 2.5% quantile to about 0.027 standard errors; four of these are allowed.
    assert found.low == pytest.approx(found.difference - 1.96 * error, abs=0.11 * error)
    assert found.high == pytest.approx(found.difference + 1.96 * error, abs=0.11 * error)


def test_pairing_takes_out_what_both_systems_share():
    """Sentences differ much, systems little: resampled apart, the difference would be lost in noise."""
    rng = np.random.default_rng(8)
    lengths = np.full(300, 20)
    hardness = rng.integers(5, 20, 300)
    second = np.stack([hardness, lengths], axis=1)[None]
    first = second.copy()
    first[0, ::10, 0] += 1  # one token more in each tenth sentence
    paired = paired_bootstrap(first, second, accuracy)
    assert paired.excludes_zero
    alone = 1.96 * (hardness / 20).std() * (2 / 300) ** 0.5
    assert paired.high - paired.difference < alone / 5


def test_a_system_does_not_differ_from_itself_and_the_sign_turns_with_the_order():
    rng = np.random.default_rng(9)
    first, second = spans(rng, 2, 50), spans(rng, 2, 50)
    same = paired_bootstrap(first, first, span_f1, resamples=50)
    assert same == (0, 0, 0)
    assert not same.excludes_zero
    one, other = (paired_bootstrap(*pair, span_f1, resamples=500) for pair in ((first, second), (second, first)))
    assert one == pytest.approx((-other.difference, -other.high, -other.low), abs=1e-12)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    """Sentences of many lengths, tokens of one sentence alike: the truth is the difference of the chances."""
    rng = np.random.default_rng(10)
    held, trials = 0, 400
    for _ in range(trials):
        lengths = rng.integers(1, 30, 150)
        ease = rng.uniform(0.5, 0.9, 150)  # of a sentence, for both
        systems = []
        for gain in (0.05, 0.0):
            right = rng.binomial(lengths, np.broadcast_to(ease + gain, (2, 150)))
            systems.append(np.stack([right, np.tile(lengths, (2, 1))], axis=2))
        found = paired_bootstrap(*systems, accuracy, resamples=400, seed=int(rng.integers(2**31)))
        held += found.low <= 0.05 <= found.high
    assert 0.91 <= held / trials <= 0.98  # 0.95 and three standard errors, the percentile interval being a little short


def test_sentences_that_do_not_match_are_refused():
    counts = np.ones((2, 5, 2), dtype=int)
    for wrong in (counts[:, :4], counts[0], counts[:, :, :1], counts[:0]):
        with pytest.raises(InputError, match="same sentences"):
            paired_bootstrap(counts, wrong, accuracy)
