"""Tokens and their tags out of Universal Dependencies treebanks."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from elmofire.engine.batches import Ints
from elmofire.errors import DataError
from elmofire.tasks.tagging import TaggedSentence
from elmofire.text.readers import read_lines, read_sentences

_COLUMNS = {"upos": 3, "xpos": 4}
NEVER_SEEN = -1  # the number of a tag that the training part lacks: no prediction is right


def read_tagged(path: str, column: Literal["upos", "xpos"] = "xpos") -> list[TaggedSentence]:
    """The sentences of a CoNLL-U file (or .conllu.xz and its like), without multiword ranges and empty nodes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> rows = ["1-2\\tdon't" + 8 * "\\t_", "1\\tdo\\t_\\tAUX\\tVB" + 5 * "\\t_", "2\\tn't\\t_\\tPART\\tRB" + 5 * "\\t_"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "one.conllu")
    ...     size = path.write_text("\\n".join(rows) + "\\n")
    ...     read_tagged(str(path))
    [TaggedSentence(tokens=['do', "n't"], tags=['VB', 'RB'])]
    """
    place = _COLUMNS[column]
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if not columns[0].isdecimal():
            continue
        if len(columns) <= place or columns[place] in ("", "_"):
            raise DataError(f"{path}:{number}: the word has no {column.upper()} tag")
        tags.append(columns[place])
    # The words are read by the one reader of CoNLL-U, which also checks how rows are numbered.
    sentences: list[TaggedSentence] = []
    start = 0
    for tokens in read_sentences(path, format="conllu"):
        sentences.append(TaggedSentence(list(tokens), tags[start : start + len(tokens)]))
        start += len(tokens)
    return sentences


def tag_numbers(train: Sequence[TaggedSentence]) -> dict[str, int]:
    """The tags of the training part, in the order of the alphabet."""
    return {tag: number for number, tag in enumerate(sorted({tag for _, tags in train for tag in tags}))}


def numbered_tags(sentences: Iterable[TaggedSentence], numbers: dict[str, int]) -> Ints:
    """The number of each token's tag, sentence after sentence; -1 for those that the training part lacks."""
    return np.array([numbers.get(tag, NEVER_SEEN) for _, tags in sentences for tag in tags], dtype=np.int64)
