"""Tags on tokens, and spans as such tags. Inside, the scheme is IOBES: a span of several tokens is B I .. I E, one of a single token S."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from elmofire.engine.batches import Ints


class TaggedSentence(NamedTuple):
    """Tokens, and a tag for each."""

    tokens: list[str]
    tags: list[str]


def to_iobes(tags: Sequence[str]) -> list[str]:
    """IOB1 or IOB2 tags of a sentence as IOBES.

    In IOB1 every token of a span has I, and B is left for a span that directly follows another of its kind.

    >>> to_iobes(["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG"])
    ['B-PER', 'E-PER', 'S-PER', 'O', 'S-LOC', 'S-ORG']
    """
    kinds = [tag[2:] for tag in tags]
    begins = [
        tag != "O" and (tag[0] == "B" or here == 0 or kinds[here - 1] != kinds[here]) for here, tag in enumerate(tags)
    ]
    converted: list[str] = []
    for here, tag in enumerate(tags):
        if tag == "O":
            converted.append("O")
            continue
        ends = here + 1 == len(tags) or begins[here + 1] or tags[here + 1] == "O"
        prefix = ("S" if ends else "B") if begins[here] else ("E" if ends else "I")
        converted.append(f"{prefix}-{kinds[here]}")
    return converted


class TagSet:
    """The IOBES tags of some kinds of spans, and which of them may follow which.

    >>> tags = TagSet(["PER"])
    >>> tags.names
    ('O', 'B-PER', 'I-PER', 'E-PER', 'S-PER')
    >>> tags.follows[tags.number["B-PER"]].tolist()
    [False, False, True, True, False]
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self.names = ("O", *(f"{prefix}-{kind}" for kind in sorted(set(kinds)) for prefix in "BIES"))
        self.number = {name: number for number, name in enumerate(self.names)}
        self.first = np.array([name[0] in "OBS" for name in self.names])  # (K,) may begin a sentence
        self.last = np.array([name[0] in "OES" for name in self.names])  # (K,) may end it
        self.follows = np.array([[_may_follow(before, name) for name in self.names] for before in self.names])  # (K, K)

    def ids(self, tags: Iterable[str]) -> Ints:
        return np.array([self.number[tag] for tag in tags], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)


def _may_follow(before: str, name: str) -> bool:
    open_span = before[0] in "BI"
    return name[0] in "IE" and name[2:] == before[2:] if open_span else name[0] in "OBS"
