"""A new head for a model that goes on with other words: before it has learned anything, it predicts them by how frequent they are.

| word | row | bias |
| --- | --- | --- |
| all, where no head was there | 0 | the logarithm of its share in the training text, each counted once more than it is there |
| one that the old head had | the old one | the old one |
| one that the old head took for `<UNK>`, and `<UNK>` | that of the old `<UNK>` | its bias, and the logarithm of the word's share among these |

Rows of zeros leave the body as it is until the head has learned something: random ones would train it to please them. The old `<UNK>` is
divided, so that the words of a head that was there keep their probabilities beside the new ones.
"""

from collections import ChainMap
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from elmofire.formats.config import BACKWARD, FORWARD
from elmofire.formats.weights import Weights
from elmofire.text.characters import END, START
from elmofire.text.vocabulary import UNKNOWN, Vocabulary
from elmofire.train.corpus.reader import Corpus


def with_new_head(weights: Weights, corpus: Corpus) -> Weights:
    """The model with a head for the corpus's vocabulary in the place of its own, if it has one."""
    words = corpus.vocabulary
    config = replace(weights.config, head=len(words))
    bias = np.log(predicted_shares(corpus, config.directions))
    weight = np.zeros((len(words), config.projection), np.float32)
    old = words_of_head(weights)
    if old is not None:
        kept = np.array([word in old and word not in UNKNOWN for word in words.words])
        rows = old.ids(words.words)
        bias[~kept] -= np.logaddexp.reduce(bias[~kept])
        bias = np.where(kept, 0, bias) + weights.arrays["head.bias"][rows]
        weight = np.asarray(weights.arrays["head.weight"][rows], np.float32)
    head = {"head.weight": weight, "head.bias": bias.astype(np.float32)}
    return replace(weights, config=config, arrays=ChainMap(head, weights.arrays), vocabulary=words)  # pyright: ignore[reportArgumentType]


def words_of_head(weights: Weights) -> Vocabulary | None:
    """Those whose rows a new head can take over, where there is a head and its words are known."""
    words = weights.vocabulary if weights.config.head else None
    return None if words is None or words.unknown is None else words


def predicted_shares(corpus: Corpus, directions: tuple[str, ...]) -> NDArray[np.float64]:
    """How often each word of the vocabulary is what comes next, over all directions together; none never."""
    size, sentences = len(corpus.vocabulary), len(corpus.train)
    counts = np.bincount(corpus.targets(np.arange(corpus.words)), weights=corpus.counts, minlength=size)
    counts *= len(directions)
    for direction, boundary in ((FORWARD, END), (BACKWARD, START)):
        counts[corpus.vocabulary.id(boundary)] += sentences * (direction in directions)
    return (counts + 1) / (counts + 1).sum()
