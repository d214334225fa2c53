"""How a corpus is made: what `prepare` takes by name, checked before any text is read."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from elmofire.errors import InputError
from elmofire.recipe import named, shown
from elmofire.text.readers import home_expanded
from elmofire.text.sentences import VERSION
from elmofire.text.tokenizers import Tokenizer, TokenizerInfo, load_tokenizer, tokenizer_for
from elmofire.train.corpus.report import refuse_language_name
from elmofire.train.corpus.sources import DOCUMENTS, listed_paths
from elmofire.train.corpus.words import SPECIALS


@dataclass(frozen=True)
class CorpusSettings:
    """How a corpus is made; `prepare` says what each one means."""

    language: str = "en"
    pretokenized: bool = False
    sentences: str = "split"
    documents: str = "auto"
    titles: str = ""
    held_out: float | int = 0
    held_out_name: str = "heldout"
    vocabulary: int | str = 100_000
    min_count: int = 1
    unique: str = ""
    check_against: tuple[str, ...] = ()
    ngram: int = 13
    drop_overlaps: bool = False

    def __post_init__(self) -> None:
        if self.documents not in DOCUMENTS:
            raise InputError(f"documents are {self.documents!r}, but should be {', '.join(DOCUMENTS)}")
        if self.sentences not in ("split", "lines"):
            raise InputError(f"sentences are {self.sentences!r}, but should be split or lines")
        if self.unique not in ("", "sentences", "documents"):
            raise InputError(f"unique is {self.unique!r}, but should be sentences or documents")
        if not self.held_out >= 0 or (isinstance(self.held_out, float) and not self.held_out < 1):  # nan is neither
            raise InputError(f"held_out is {self.held_out}, but should be a share below 1 or a number of documents")
        if isinstance(self.vocabulary, int) and self.vocabulary <= len(SPECIALS):
            raise InputError(f"a vocabulary of {self.vocabulary} words has no room beside {', '.join(SPECIALS)}")
        if isinstance(self.vocabulary, str) and self.min_count > 1:
            raise InputError(
                f"min_count is {self.min_count}, but {self.vocabulary} is taken with all its words",
                hint="give a number and have the vocabulary made, or leave min_count out",
            )
        if self.min_count < 1:
            raise InputError(f"min_count is {self.min_count}, but should be at least 1")
        if self.ngram < 1:
            raise InputError(f"n-grams of {self.ngram} words do not exist")
        if not self.check_against and (self.drop_overlaps or self.ngram != CorpusSettings.ngram):
            what = "drop_overlaps" if self.drop_overlaps else "ngram"
            raise InputError(
                f"{what} is given, but no text to look for", hint="check_against=[FILE] (--check-against FILE) names it"
            )
        try:
            re.compile(self.titles)
        except re.error as error:
            raise InputError(f"titles: {self.titles!r} is no regular expression: {error}") from None

    @property
    def splits_sentences(self) -> bool:
        return self.sentences == "split" and not self.pretokenized

    @property
    def sentence_rules(self) -> int | None:
        """The version of the rules by which sentences are split; None where lines are sentences."""
        return VERSION if self.splits_sentences else None

    def tokenizer(self) -> Tokenizer:
        refuse_language_name(self.language)
        if self.pretokenized:
            return load_tokenizer(TokenizerInfo("whitespace", self.language, 1))
        return tokenizer_for(self.language)


def corpus_settings(given: Mapping[str, Any]) -> CorpusSettings:
    """The settings given by name; all names that are none, and values of another type, are told at once.

    >>> corpus_settings({"documents": "blocks"}).documents
    'blocks'
    >>> corpus_settings({"min_cuont": 2})
    Traceback (most recent call last):
    elmofire.errors.InputError: unknown setting `min_cuont`, did you mean `min_count`?
    """
    values = dict(given)
    if "check_against" in given:
        values["check_against"] = tuple(listed_paths(given["check_against"], "check_against"))
    if isinstance(given.get("vocabulary"), str | os.PathLike):
        values["vocabulary"] = home_expanded(given["vocabulary"])
    known = {**get_type_hints(CorpusSettings), "check_against": tuple}
    problems = [_unknown(name, known) for name in values if name not in known]
    for name, value in values.items():
        is_number_like = isinstance(value, bool) and known[name] is not bool  # Python takes True for 1
        if name in known and (is_number_like or not isinstance(value, known[name])):
            wanted = getattr(known[name], "__name__", known[name])
            problems.append(f"{name} is {shown(value)}, but should be of type {wanted}")
    if problems:
        raise InputError("; ".join(problems))
    return CorpusSettings(**values)


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name[:100], known, n=1)
    told = f"did you mean `{near[0]}`?" if near else f"the known ones are {', '.join(known)}"
    return f"unknown setting `{named(name)}`, {told}"
