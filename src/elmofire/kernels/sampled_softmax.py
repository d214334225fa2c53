"""`sampled_softmax_loss`: the loss of the true word among a few sampled ones, as the models of 2018 were trained."""

import torch
from torch import Tensor

from elmofire.errors import InputError
from elmofire.kernels.paths import choose_path, without_autocast


def sampled_softmax_loss(
    vectors: Tensor,
    sampled_weight: Tensor,
    sampled_bias: Tensor,
    target_weight: Tensor,
    target_bias: Tensor,
    *,
    sampled_ids: Tensor,
    targets: Tensor,
    sampled_log_counts: Tensor,
    target_log_counts: Tensor,
    path: str = "auto",
) -> Tensor:
    """-log p(target) of every row (n,), where p is a softmax over the row's target and the S samples that all rows share.

    `vectors` (n, P) meet rows of the head: those of the samples, (S, P) and (S,), and of each row's target, (n, P) and (n,). A logit
    is corrected by the logarithm of how often its word was expected among the samples (zeros: no correction), and a sample that is
    the row's own target counts for nothing. Gradients flow to `vectors` and to the head's rows as given, each in its own dtype;
    whoever gathered those rows adds them up. Products are made in `vectors`' dtype, the rest and the loss are float32 at least.
    `path` is as in `lstmp`; "gluon" and "triton" are one path here, which keeps a single (n, S) buffer for both directions.

    >>> one, none = torch.ones(1, 1), torch.zeros(1)
    >>> word = torch.tensor([7])
    >>> sampled_softmax_loss(
    ...     one, one, none, one, none,
    ...     sampled_ids=word + 1, targets=word, sampled_log_counts=none, target_log_counts=none,
    ... )
    tensor([0.6931])
    """
    _check(vectors, sampled_weight, sampled_bias, target_weight, target_bias)
    _check(vectors, sampled_weight, sampled_log_counts, target_weight, target_log_counts)
    _check(vectors, sampled_weight, sampled_ids, target_weight, targets)
    sampled_shift, target_shift = sampled_bias - sampled_log_counts, target_bias - target_log_counts
    if choose_path(path, vectors.device, vectors.dtype, rows=0) != "torch":
        from elmofire.kernels import sampled_softmax_triton

        run = sampled_softmax_triton.losses
    else:
        run = _in_torch
    with without_autocast(vectors.device):
        return run(vectors, sampled_weight, sampled_shift, target_weight, target_shift, sampled_ids, targets)


def _in_torch(
    vectors: Tensor,
    sampled_weight: Tensor,
    sampled_shift: Tensor,
    target_weight: Tensor,
    target_shift: Tensor,
    sampled_ids: Tensor,
    targets: Tensor,
) -> Tensor:
    wide = torch.promote_types(vectors.dtype, torch.float32)
    others = (vectors @ sampled_weight.to(vectors.dtype).T).to(wide) + sampled_shift.to(wide)  # (n, S)
    others = others.masked_fill(sampled_ids == targets[:, None], float("-inf"))
    true = (vectors.to(wide) * target_weight.to(vectors.dtype).to(wide)).sum(dim=1) + target_shift.to(wide)
    return torch.cat([true[:, None], others], dim=1).logsumexp(dim=1) - true


def _check(vectors: Tensor, sampled_weight: Tensor, of_samples: Tensor, target_weight: Tensor, of_rows: Tensor) -> None:
    n, width = vectors.shape
    found = [tuple(t.shape) for t in (sampled_weight, of_samples, target_weight, of_rows)]
    samples = len(sampled_weight)
    expected = [(samples, width), (samples,), (n, width), (n,)]
    if found != expected:
        raise InputError(
            f"of the samples and of the targets: shapes {found}, but vectors ({n}, {width}) need {expected}"
        )
