"""Tokens to character ids, as AllenNLP's indexer made them: rows of 50, 0 where there is no token."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elmofire.errors import InputError
from elmofire.text.characters import BYTES, END, START, character_ids


def _row(token: str) -> list[int]:
    """Before the shift by one that frees 0 for padding."""
    return (character_ids([token])[0] - 1).tolist()


class ELMoCharacterMapper:
    """A token's 50 ids; tokens of `tokens_to_add` are spelled with one id of their own.

    >>> ELMoCharacterMapper({"[MASK]": 1}).convert_word_to_char_ids("[MASK]")[:4]
    [259, 2, 260, 261]
    """

    max_word_length = 50
    beginning_of_sentence_character = 256
    end_of_sentence_character = 257
    beginning_of_word_character = 258
    end_of_word_character = 259
    padding_character = 260
    beginning_of_sentence_characters = _row(START)
    end_of_sentence_characters = _row(END)
    bos_token = START
    eos_token = END

    def __init__(self, tokens_to_add: Mapping[str, int] | None = None) -> None:
        self.tokens_to_add = dict(tokens_to_add or {})
        for token, number in self.tokens_to_add.items():
            if not 0 <= number < BYTES:
                raise InputError(f"tokens_to_add gives {token!r} the id {number}, but ids are 0 to {BYTES - 1}")

    def convert_word_to_char_ids(self, word: str) -> list[int]:
        ids = character_ids(["" if word in self.tokens_to_add else word])[0].tolist()
        if word in self.tokens_to_add:
            ids[1:3] = [self.tokens_to_add[word] + 1, self.end_of_word_character + 1]
        return ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.tokens_to_add == other.tokens_to_add

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class ELMoTokenCharactersIndexer:
    """What data readers call. Tokens are strings, or have a `text`, as spaCy's and AllenNLP's do."""

    def __init__(
        self,
        namespace: str = "elmo_characters",
        tokens_to_add: Mapping[str, int] | None = None,
        token_min_padding_length: int = 0,
    ) -> None:
        self._namespace = namespace
        self._token_min_padding_length = token_min_padding_length
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    def count_vocab_items(self, token: Any, counter: Any) -> None:
        """Characters need no vocabulary."""

    def get_empty_token_list(self) -> dict[str, list]:
        return {"elmo_tokens": []}

    def tokens_to_indices(self, tokens: Sequence[Any], vocabulary: Any = None) -> dict[str, list[list[int]]]:
        """
        >>> ELMoTokenCharactersIndexer().tokens_to_indices(["a"])["elmo_tokens"][0][:4]
        [259, 98, 260, 261]
        """
        texts = [token if isinstance(token, str) else token.text for token in tokens]
        return {"elmo_tokens": [self._mapper.convert_word_to_char_ids(text) for text in texts]}

    def get_padding_lengths(self, indexed_tokens: Mapping[str, Sequence[Any]]) -> dict[str, int]:
        return {key: max(len(ids), self._token_min_padding_length) for key, ids in indexed_tokens.items()}

    def as_padded_tensor_dict(
        self, tokens: Mapping[str, Sequence[Sequence[int]]], padding_lengths: Mapping[str, int]
    ) -> dict[str, Tensor]:
        length = padding_lengths["elmo_tokens"]
        padded = torch.zeros(length, ELMoCharacterMapper.max_word_length, dtype=torch.long)
        for place, ids in enumerate(tokens["elmo_tokens"][:length]):
            padded[place] = torch.tensor(ids)
        return {"elmo_tokens": padded}


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Token lists -> ids (sentences, longest, 50), padded with zeros.

    >>> batch_to_ids([["Stick", "to", "the", "plan"], ["Why", "?"]]).shape
    torch.Size([2, 4, 50])
    """
    if isinstance(batch, str) or any(isinstance(sentence, str) for sentence in batch):
        raise InputError(
            "batch_to_ids takes lists of tokens, not strings", hint="split or tokenize each sentence first"
        )
    width = ELMoCharacterMapper.max_word_length
    ids = torch.zeros(len(batch), max(map(len, batch), default=0), width, dtype=torch.long)
    for row, sentence in enumerate(batch):
        ids[row, : len(sentence)] = torch.from_numpy(character_ids(list(sentence), width))
    return ids
