"""The language model by its definition: float64, one token after the other, the whole softmax for each."""

import itertools
import math

from elmofire.engine import definition
from elmofire.engine.batches import token_ids
from elmofire.formats.weights import Weights
from elmofire.text.vocabulary import Vocabulary

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat", "sat", "on", "mat", ".", "日本語"])
SENTENCES = [
    ["the", "cat", "sat", "on", "the", "mat", "."],
    [],
    ["日本語"],
    ["unheard", "cat", "of"],
    ["a-word-that-is-longer-than-the-model-reads", "sat"],
]


class Walk:
    """One direction that reads token by token; its state is carried until it is made anew."""

    def __init__(self, weights: Weights, direction: str) -> None:
        self._weights = weights
        self._direction = direction
        self._state = definition.zero_state(weights.config)[direction]

    def read(self, token: str):
        """Log-probabilities of every word as the one that is read next."""
        config, arrays = self._weights.config, self._weights.arrays
        ids = token_ids([token], config, self._weights.vocabulary, self._weights.alphabet)[0]
        outputs, self._state = definition.stack(
            config, arrays, self._direction, [definition.encode(config, arrays, ids)], self._state
        )
        return definition.log_probabilities(arrays, outputs[-1][0])


def walked(weights: Weights, tokens: list[str], direction: str) -> list[float]:
    """What `SentenceScore` holds for a direction."""
    reading = ["<S>", *tokens, "</S>"][:: 1 if direction == "forward" else -1]
    walk = Walk(weights, direction)
    scores = [
        float(walk.read(here)[weights.vocabulary.id(following)]) for here, following in itertools.pairwise(reading)
    ]
    return scores if direction == "forward" else scores[::-1]


def walked_lanes(weights: Weights, sentences: list[list[str]], lanes: int, direction: str) -> tuple[float, int]:
    """Perplexity and events of one direction, as the trainer's own batches of one column were filled."""
    order = 1 if direction == "forward" else -1
    unread = [["<S>", *tokens, "</S>"][::order] for tokens in sentences]
    streams: list[list[str]] = [[] for _ in range(lanes)]
    walks = [Walk(weights, direction) for _ in range(lanes)]
    losses: list[float] = []
    while True:
        column = []
        for lane in range(lanes):
            if len(streams[lane]) <= 1:
                if not unread:
                    return math.exp(sum(losses) / len(losses)), len(losses)
                streams[lane] = unread.pop(0)
            column.append((lane, streams[lane][0], streams[lane][1]))
            streams[lane] = streams[lane][1:]
        losses += [-float(walks[lane].read(here)[weights.vocabulary.id(then)]) for lane, here, then in column]
