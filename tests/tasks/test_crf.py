"""The conditional random field against every sequence written out, and its gradient against finite differences."""

import itertools

import pytest
import torch

from elmofire.tasks.layers import Crf
from elmofire.tasks.tagging import TagSet

LENGTHS = [5, 1, 4, 2, 3]


@pytest.fixture(params=[["X"], ["X", "Y"]], ids=["five tags", "nine tags"])
def crf(request) -> Crf:
    torch.manual_seed(1)
    crf = Crf(TagSet(request.param))
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


def batch(crf: Crf, lengths: list[int], *, loud: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    scores = loud * torch.randn(len(lengths), max(lengths), len(crf.start), dtype=torch.float64)
    return scores, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def written_out(crf: Crf, scores: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Every allowed sequence of one sentence's scores (T, K) and its score, one at a time."""
    found = {}
    for tags in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        steps = list(itertools.pairwise(tags))
        if not (crf.first[tags[0]] and crf.last[tags[-1]] and all(crf.follows[step] for step in steps)):
            continue
        score = crf.start[tags[0]].item() + crf.end[tags[-1]].item()
        score += sum(scores[t, tag].item() for t, tag in enumerate(tags))
        found[tags] = score + sum(crf.transitions[step].item() for step in steps)
    return found


@pytest.mark.parametrize("loud", [1.0, 30.0])
def test_probabilities_are_those_of_all_allowed_sequences(crf, loud):
    lengths = [length for length in LENGTHS if length <= (5 if len(crf.start) == 5 else 4)]
    scores, mask = batch(crf, lengths, loud=loud)
    for b, length in enumerate(lengths):
        sequences = written_out(crf, scores[b, :length])
        total = torch.logsumexp(torch.tensor(list(sequences.values()), dtype=torch.float64), dim=0).item()
        for tags, score in list(sequences.items())[:: max(1, len(sequences) // 7)]:
            gold = torch.zeros(1, mask.shape[1], dtype=torch.long)
            gold[0, :length] = torch.tensor(tags)
            loss = crf.loss(scores[b : b + 1], mask[b : b + 1], gold).item()
            assert loss == pytest.approx(total - score, rel=1e-6, abs=1e-6)


def test_the_best_sequence_is_the_best_of_all_allowed_ones(crf):
    lengths = [length for length in LENGTHS if length <= (5 if len(crf.start) == 5 else 4)]
    scores, mask = batch(crf, lengths)
    best = crf.best(scores, mask)
    for b, length in enumerate(lengths):
        sequences = written_out(crf, scores[b, :length])
        assert tuple(best[b, :length].tolist()) == max(sequences, key=lambda tags: sequences[tags])


def test_a_forbidden_tag_is_never_chosen_however_high_its_score():
    tags = TagSet(["X"])
    scores = torch.zeros(1, 3, len(tags))
    scores[0, :, tags.number["I-X"]] = 500.0
    crf, mask = Crf(tags), torch.ones(1, 3, dtype=torch.bool)
    assert [tags.names[tag] for tag in crf.best(scores, mask)[0]] == ["B-X", "I-X", "E-X"]
    gold = torch.tensor([[tags.number[name] for name in ("B-X", "I-X", "E-X")]])
    assert crf.loss(scores, mask, gold).item() == pytest.approx(0.0, abs=1e-9)


def test_gradients_are_those_of_finite_differences(crf):
    lengths = [3, 1, 7, 2]
    scores, mask = batch(crf, lengths, loud=1.0)
    gold = crf.best(*batch(crf, lengths)) * mask
    inputs = [
        scores.requires_grad_(),
        *(parameter.detach().double().requires_grad_() for parameter in crf.parameters()),
    ]

    def loss(scores, *parameters):
        named = dict(zip(dict(crf.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(
            Losses(crf), {f"crf.{name}": value for name, value in named.items()}, (scores, mask, gold)
        )

    assert torch.autograd.gradcheck(loss, inputs)


class Losses(torch.nn.Module):
    def __init__(self, crf: Crf) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, scores, mask, gold):
        return self.crf.loss(scores, mask, gold)


def test_what_is_beyond_a_sentence_changes_nothing(crf):
    scores, mask = batch(crf, [4, 9, 1])
    gold = crf.best(scores, mask)
    changed = torch.where(mask[:, :, None], scores, 100 * torch.randn_like(scores))
    for b, length in enumerate([4, 9, 1]):
        alone = scores[b : b + 1, :length], mask[b : b + 1, :length]
        assert crf.best(changed, mask)[b, :length].tolist() == crf.best(*alone)[0].tolist()
        alone_loss = crf.loss(*alone, gold[b : b + 1, :length])
        torch.testing.assert_close(crf.loss(changed, mask, gold)[b], alone_loss[0], rtol=1e-12, atol=1e-10)


def test_long_sentences_neither_overflow_nor_vanish(crf):
    scores, mask = batch(crf, [400, 123], loud=20.0)
    scores.requires_grad_()
    losses = crf.loss(scores, mask, crf.best(scores, mask))
    losses.sum().backward()
    assert (losses >= 0).all()
    assert losses.isfinite().all()
    assert scores.grad is not None
    # Marginals minus the tags themselves: at every token of a sentence they sum to nothing.
    torch.testing.assert_close(scores.grad.sum(dim=2), torch.zeros(2, 400, dtype=torch.float64), rtol=0, atol=1e-9)
