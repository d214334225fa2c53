"""`LanguageModel`: how likely a text is, and what could stand in a word's place."""

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from elmofire.errors import InputError, ModelError, require_count
from elmofire.formats import Loadable, load_weights
from elmofire.formats.config import BACKWARD, FORWARD
from elmofire.formats.names import DEFAULT_MODEL
from elmofire.formats.weights import Weights, require_kind
from elmofire.lm.reading import Reader
from elmofire.lm.scoring import Perplexity, Scorer, SentenceScore
from elmofire.lm.substitutes import BOTH, Fillers, Substitute, find_marked
from elmofire.text.token_lists import Sentences
from elmofire.text.tokenizers import Token
from elmofire.text.vocabulary import Vocabulary


class LanguageModel:
    """A biLM that predicts words: it needs a head, and the vocabulary that names the head's rows.

    >>> from elmofire.formats.config import small
    >>> from elmofire.formats.initial import initial_weights
    >>> words = Vocabulary(["<S>", "</S>", "<UNK>", "the", "cat", "sat"])
    >>> lm = LanguageModel(initial_weights(small(head=6), seed=1, vocabulary=words), device="cpu")
    >>> lm.perplexity([["the", "cat", "sat"]]).events
    4
    >>> [len(score.forward) for score in lm.score([["the", "cat", "sat"], []])]
    [4, 1]
    >>> sorted(item.word for item in lm.substitutes("the *dog* sat"))
    ['cat', 'sat', 'the']
    """

    def __init__(
        self, weights: Weights, *, device: str = "auto", precision: str = "float32", threads: int | None = None
    ) -> None:
        require_kind(weights, "LanguageModel")
        vocabulary = _checked_vocabulary(weights)
        self.config = weights.config
        # Without the head, of which the scorer holds the one copy.
        headless = replace(weights, config=replace(weights.config, head=0))
        self.embedder = Reader(headless, device=device, precision=precision, threads=threads)
        self._scorer = Scorer(
            self.embedder,
            self.embedder.make_softmax(weights.arrays["head.weight"], weights.arrays["head.bias"]),
            vocabulary,
            start=weights.alphabet.start,
            end=weights.alphabet.end,
        )

    @classmethod
    def load(
        cls,
        what: Loadable = DEFAULT_MODEL,
        *,
        vocab: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "float32",
        threads: int | None = None,
    ) -> "LanguageModel":
        """Load a model as `Embedder.load` does; `vocab` is a vocabulary file for a model that comes without one."""
        return cls(load_weights(what, vocab=vocab), device=device, precision=precision, threads=threads)

    def perplexity(
        self,
        sentences: Sentences,
        *,
        lanes: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Perplexity:
        """Perplexity of both directions over a text, with the share of unknown words beside it.

        Every sentence is scored alone, each word and the sentence's far boundary counted. With `lanes` it is computed as in 2018: so
        many streams of text with carried state, the incomplete last step dropped.
        """
        if lanes is None:
            return self._scorer.perplexity(sentences, progress)
        return self._scorer.lane_perplexity(sentences, lanes, progress)

    def score(self, sentences: Sentences) -> list[SentenceScore]:
        """Log-probabilities of every token of each sentence, in both directions."""
        return list(self._scorer.scores(sentences))

    def stream(
        self, sentences: Sentences, *, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[SentenceScore]:
        """What `score` gives, one sentence at a time, for text that does not fit in memory."""
        return self._scorer.scores(sentences, progress)

    def substitutes(
        self, sentence: str | Sequence[str], position: int | None = None, *, top: int = 10, direction: str = BOTH
    ) -> list[Substitute]:
        """The words likeliest to stand in place of token `position`, by what is left of it, right of it, or both.

        `direction` is "forward", "backward" or "both". A string may mark the token instead of giving its position:
        "The *cat* sat". The log-probabilities of "both" are normalized over the words that are listed at all, the vocabulary
        without its markers; those of one direction are the model's own.
        """
        if isinstance(sentence, str) and position is None:
            tokens, position = find_marked(sentence, self.tokenize)
        else:
            tokens = list(next(iter(self.embedder.token_lists([sentence]))))
        if position is None:
            raise InputError("a list of tokens needs position=, the place of the one to replace, from 0")
        try:
            place = -1 if isinstance(position, bool) else operator.index(position)
        except TypeError:
            place = -1
        if place not in range(len(tokens)):
            raise InputError(
                f"position is {position!r}, but should be one of the sentence's {len(tokens)} tokens, from 0"
            )
        require_count(top, "top")
        wanted = (FORWARD, BACKWARD) if direction == BOTH else (direction,)
        for one in wanted:
            if one not in self.config.directions:
                raise InputError(
                    f"direction is {direction!r}, but should be one of {', '.join([*self.config.directions, *([BOTH] if len(self.config.directions) > 1 else [])])}"
                )
        found = [self._scorer.expected(tokens, place, one) for one in wanted]
        return self._fillers.best(self._fillers.combined(*found) if direction == BOTH else found[0], top)

    def tokenize(self, text: str) -> list[Token]:
        """The tokens of a sentence, as the model's own tokenizer splits it."""
        return self.embedder.tokenize(text)

    @property
    def boundaries(self) -> tuple[str, str]:
        """How the start and the end of a sentence are written."""
        return self._scorer.start, self._scorer.end

    @cached_property
    def _fillers(self) -> Fillers:
        return Fillers(self._scorer.vocabulary, start=self._scorer.start, end=self._scorer.end)

    def __repr__(self) -> str:
        info = self.embedder.info()
        return (
            f"LanguageModel({info['model'] or 'weights'!r}, vocabulary={self.config.head}, engine={info['engine']!r})"
        )

    def __reduce__(self):
        raise TypeError("a LanguageModel cannot be pickled; load it where it is needed")


def _checked_vocabulary(weights: Weights) -> Vocabulary:
    """The words of the head's rows; an error if the model cannot score."""
    config, words = weights.config, weights.vocabulary
    if not config.head:
        raise ModelError(
            "this model has no language-model head, so it embeds but cannot predict words",
            hint="the head of 2018's models is in their TensorFlow checkpoint, or in a softmax_weights.hdf5 to put beside the weights",
        )
    if words is None:
        raise ModelError(
            f"this model's head has {config.head:,} rows, but no vocabulary that says which words they are",
            hint="give the vocabulary it was trained with: vocab=FILE in Python, --vocab FILE on the command line",
        )
    if len(words) != config.head:
        raise ModelError(f"the vocabulary has {len(words):,} words, but the model's head has {config.head:,} rows")
    targets = {FORWARD: weights.alphabet.end, BACKWARD: weights.alphabet.start}
    lacking = [targets[direction] for direction in config.directions if targets[direction] not in words]
    if lacking:
        raise ModelError(f"the vocabulary has no {' and no '.join(lacking)}, with which sentences end")
    return words
