"""Log-probabilities of sentences, and the perplexity that follows from them.

A sentence w1..wT is read as `<S> w1..wT </S>`. The forward model predicts each word and `</S>` from what stands left of it, the backward
model each word and `<S>` from what stands right of it: T + 1 predictions either way. In training the forward model never read `</S>`,
nor the backward model `<S>`, so what they would say after those is never used.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmofire.engine.batches import Ints
from elmofire.engine.state import State
from elmofire.errors import InputError, require_count
from elmofire.formats.config import BACKWARD, FORWARD
from elmofire.formats.weights import Array
from elmofire.lm.lanes import Place, chunks, lane_steps
from elmofire.lm.reading import Reader
from elmofire.lm.softmax import Softmax
from elmofire.text.token_lists import Sentences
from elmofire.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from elmofire.lm.torch_softmax import TorchSoftmax

SENTENCES = "full softmax, zero state at each sentence, every word and </S> counted, <S> given (backward: the reverse)"
LANES = "full softmax, lanes as in 2018: {}, state carried over sentences, tail dropped, unroll 1"

_ROWS = 2048  # predictions of a direction that go through the softmax together, so that a large head is not read for each sentence


@dataclass(frozen=True)
class SentenceScore:
    """Natural log-probabilities of a sentence's tokens; those of a direction that the model lacks are None."""

    tokens: list[str]
    forward: list[float] | None  # of the tokens and of the end of the sentence, each given what is left of it
    backward: list[float] | None  # of the start of the sentence and of the tokens, each given what is right of it
    unknown: list[bool]  # which tokens the vocabulary lacks, so that `<UNK>` was scored

    @property
    def forward_total(self) -> float | None:
        return None if self.forward is None else math.fsum(self.forward)

    @property
    def backward_total(self) -> float | None:
        return None if self.backward is None else math.fsum(self.backward)


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of a text, and what was counted. Figures of different vocabularies or conventions do not compare."""

    forward: float | None
    backward: float | None
    mean: float  # geometric
    events: int  # predictions in each direction
    unknown: float  # share of the words, boundaries not counted, that the vocabulary lacks
    convention: str


class Scorer:
    """A reader, the head behind it and the names of the head's words."""

    def __init__(
        self, reader: Reader, head: "Softmax | TorchSoftmax", vocabulary: Vocabulary, *, start: str, end: str
    ) -> None:
        self.reader = reader
        self.head = head
        self.vocabulary = vocabulary
        self.start = start
        self.end = end

    @property
    def directions(self) -> tuple[str, ...]:
        return self.reader.config.directions

    def bounded(self, tokens: Sequence[str]) -> list[str]:
        return [self.start, *tokens, self.end]

    def scores(
        self, sentences: Sentences, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[SentenceScore]:
        """One for each sentence, in order; only some are read ahead."""
        block: list[tuple[list[str], Array]] = []
        rows = 0
        for tokens, vectors in self.reader.stream(sentences, "top", boundaries=True, progress=progress):
            block.append((tokens, vectors))
            rows += len(tokens) + 1
            if rows >= _ROWS:
                yield from self._scored(block)
                block, rows = [], 0
        yield from self._scored(block)

    def _scored(self, block: Sequence[tuple[list[str], Array]]) -> Iterator[SentenceScore]:
        if not block:
            return
        targets = [np.array(self.vocabulary.ids(self.bounded(tokens)), dtype=np.int64) for tokens, _ in block]
        found: dict[str, list[list[float]]] = {}
        for direction in self.directions:
            halves = [self.reader.half(vectors, direction) for _, vectors in block]
            # Forward, row t predicts token t + 1 and the last row nothing; backward, row t + 1 predicts token t.
            given, wanted = (np.s_[:-1], np.s_[1:]) if direction == FORWARD else (np.s_[1:], np.s_[:-1])
            scored = self.head.log_probabilities_of(
                np.concatenate([half[given] for half in halves]), np.concatenate([ids[wanted] for ids in targets])
            )
            ends = np.cumsum([len(ids) - 1 for ids in targets])
            found[direction] = [part.tolist() for part in np.split(scored, ends[:-1])]
        for number, (tokens, _) in enumerate(block):
            yield SentenceScore(
                tokens,
                found[FORWARD][number] if FORWARD in found else None,
                found[BACKWARD][number] if BACKWARD in found else None,
                (targets[number][1:-1] == self.vocabulary.unknown).tolist(),
            )

    def expected(self, tokens: Sequence[str], position: int, direction: str) -> NDArray[np.float64]:
        """Log-probabilities of every word (V,) in place of a token, by what one direction has read before it."""
        vectors = self.reader.embed([tokens], "top", boundaries=True)[0]
        neighbor = position if direction == FORWARD else position + 2  # among the bounded tokens
        return self.head.log_probabilities(self.reader.half(vectors[neighbor], direction))

    def perplexity(self, sentences: Sentences, progress: Callable[[int, int], None] | None = None) -> Perplexity:
        """Every sentence alone."""
        tally = _Tally(self.directions)
        for score in self.scores(sentences, progress):
            for direction in self.directions:
                logs = score.forward if direction == FORWARD else score.backward
                tally.add(
                    direction, math.fsum(logs or ()), len(score.tokens) + 1, len(score.tokens), sum(score.unknown)
                )
        return tally.perplexity(SENTENCES, "there are no sentences to score")

    def lane_perplexity(
        self, sentences: Sentences, lanes: int, progress: Callable[[int, int], None] | None = None
    ) -> Perplexity:
        """Sentences one after the other in lanes, as 2018's evaluation did."""
        require_count(lanes, "lanes")
        bounded = (self.bounded(tokens) for tokens in self.reader.token_lists(sentences))
        states: dict[str, State] = {}
        tally = _Tally(self.directions)
        for steps in chunks(lane_steps(bounded, lanes), self.reader.batch_tokens):
            for direction in self.directions:
                state = states.setdefault(direction, State.zero(self.reader.config, lanes))
                self._tally_lanes(tally, steps, direction, state)
            if progress:
                started = sum(not place.done for step in steps for place in step)
                progress(started, len(steps) * lanes - started)
        return tally.perplexity(
            LANES.format(lanes), f"the text has fewer sentences than the {lanes} lanes need to start"
        )

    def _tally_lanes(self, tally: "_Tally", steps: Sequence[Sequence[Place]], direction: str, state: State) -> None:
        rows = list(zip(*steps, strict=True))  # of a lane each
        top = self.reader.read_on([[place.reads(direction) for place in row] for row in rows], direction, state)
        predicted = [place.predicts(direction) for row in rows for place in row]
        targets: Ints = np.array(self.vocabulary.ids(predicted), dtype=np.int64)
        words = [n for n, word in enumerate(predicted) if word not in (self.start, self.end)]
        logs = self.head.log_probabilities_of(np.concatenate(top), targets)
        unknown = int((targets[words] == self.vocabulary.unknown).sum())
        tally.add(direction, math.fsum(logs), len(targets), len(words), unknown)


class _Tally:
    """Sums over a text, direction by direction."""

    def __init__(self, directions: Iterable[str]) -> None:
        self._logs = dict.fromkeys(directions, 0.0)
        self._events = dict.fromkeys(self._logs, 0)
        self._words = self._unknown = 0

    def add(self, direction: str, logs: float, events: int, words: int, unknown: int) -> None:
        self._logs[direction] += logs
        self._events[direction] += events
        self._words += words
        self._unknown += unknown

    def perplexity(self, convention: str, nothing: str) -> Perplexity:
        events = next(iter(self._events.values()))  # the same in all directions
        if not events:
            raise InputError(nothing)
        means = {direction: total / events for direction, total in self._logs.items()}
        found = {direction: _exp(-mean) for direction, mean in means.items()}
        return Perplexity(
            forward=found.get(FORWARD),
            backward=found.get(BACKWARD),
            mean=_exp(-sum(means.values()) / len(means)),
            events=events,
            unknown=self._unknown / self._words if self._words else 0.0,
            convention=convention,
        )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
