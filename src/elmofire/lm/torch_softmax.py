"""The full softmax on a torch device, in the same blocks as on the CPU."""

import numpy as np
import torch
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.formats.weights import Array
from elmofire.lm.softmax import LOGITS_AT_A_TIME, WORDS_AT_A_TIME, blocks
from elmofire.model.exact_float32 import exact_float32


class TorchSoftmax:
    """A head (V, P), (V,) on a torch device, with the interface of `Softmax`."""

    def __init__(self, weight: Array, bias: Array, device: torch.device) -> None:
        self.weight = _tensor(weight).to(device)
        self.bias = _tensor(bias).to(device)

    @torch.inference_mode()
    def log_probabilities_of(self, vectors: Array, targets: Ints) -> NDArray[np.float64]:
        """Top vectors of one direction (n, P) and the word that followed each (n,) -> its log-probabilities (n,) in float64."""
        found = [np.zeros(0)]
        with exact_float32(self.weight.device):
            for rows in blocks(len(vectors), LOGITS_AT_A_TIME // WORDS_AT_A_TIME):
                inputs, wanted = (_tensor(array[rows]).to(self.weight.device) for array in (vectors, targets))
                normalizer = torch.full((len(inputs),), -torch.inf, dtype=torch.float64, device=inputs.device)
                chosen = torch.zeros_like(normalizer)
                for words in blocks(len(self.bias), WORDS_AT_A_TIME):
                    logits = torch.addmm(self.bias[words], inputs, self.weight[words].T).double()
                    normalizer = torch.logaddexp(normalizer, logits.logsumexp(dim=1))
                    inside = (wanted >= words.start) & (wanted < words.stop)
                    here = (wanted - words.start).clamp(0, logits.shape[1] - 1)
                    chosen = torch.where(inside, logits.gather(1, here[:, None])[:, 0], chosen)
                found.append((chosen - normalizer).cpu().numpy())
        return np.concatenate(found)

    @torch.inference_mode()
    def log_probabilities(self, vector: Array) -> NDArray[np.float64]:
        """One top vector (P,) -> the log-probability of every word (V,) in float64."""
        with exact_float32(self.weight.device):
            logits = torch.addmv(self.bias, self.weight, _tensor(vector).to(self.weight.device))
        return logits.double().log_softmax(dim=0).cpu().numpy()


def _tensor(array: NDArray) -> torch.Tensor:
    """Mapped files are read-only, which torch does not know."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
