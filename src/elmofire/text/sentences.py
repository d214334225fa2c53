"""From a paragraph to its sentences: rules for any language, no dependencies.

A stop (. ! ? … and their like, with the quotes and brackets that close after it) ends a sentence where white space follows, and then
anything but a small letter; Chinese, Japanese and Indic stops need no white space. But a full stop may also belong to an abbreviation
(Mr., U.S.), an initial (J. Austen) or a number (No. 5, 3. Oktober). In doubt the sentence goes on: two sentences taken
as one harm a language model less than a name cut in two.

Nothing is lost or changed: the parts hold all of the text but the white space between them. Splitting a part again changes nothing. Time
is linear in the length.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from elmofire.text import abbreviations

VERSION = 1  # a change in what is split is a new version: prepared corpora record it


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a paragraph, without white space around them; `language` is a code, "" or "und" where it is not known.

    >>> split_sentences('Mr. J. Bell paid $3.50 in the U.S. He left. "Why?" she asked.')
    ['Mr. J. Bell paid $3.50 in the U.S.', 'He left.', '"Why?" she asked.']
    >>> split_sentences("今日は。元気です。「はい。」と言った。", "ja")
    ['今日は。', '元気です。', '「はい。」と言った。']
    """
    text = text.strip()
    ends = [*_ends(text, _rules(re.split("[-_]", language.lower())[0])), len(text)]
    return [text[start:end].rstrip() for start, end in pairwise([0, *ends])] if text else []


# ── patterns ────────────────────────────────────────────────────────────────────────────────────────────────────────

_WIDE = "\u3002\uff01\uff1f\uff61\ufe12\u0964\u0965\u06d4\u1362\u104b\u17d4"  # stops that need no white space
_STOPS = f".!?\u2026\u203c\u203d\u2047-\u2049\u061f\u0589{_WIDE}"
_QUOTES = "\"'\u2019\u201d\u00bb\u203a\u300d\u300f"
_CLOSING = rf"{_QUOTES})\]}}\uff09\u3011\u300b\u3009\uff3d\uff5d"
_OPENING = (
    r"\"'`\u2018\u201c\u201e\u201a\u00ab\u00bb\u2039(\[{\u300c\u300e\uff08\u3010\u300a\u3008\u00bf\u00a1\u2013\u2014*_-"
)
_GOES_ON = frozenset(".!?\u2026,;:)]}%/=&\uff0c\u3001\uff1b\uff1a\uff09\u300d\u300f\u060c\u061b")
# After a quotation: Japanese and Korean particles, to whose sentence it belongs.
_PARTICLE = re.compile(r"[とのをにがはもやで]|이?라|이?란|하고|하며|고\s")

# Stops, what closes after them (and marks of notes, [12]), white space; the end of the text needs no decision. German quotes close as
# English ones open; after a stop without white space they open in Chinese alone.
# What closes is looked ahead for and then taken whole: a possessive group would do, but Python 3.11.0 to 3.11.4 match such ones wrongly.
# Starting with the stop itself, and looking back for another one after it, is three times as fast as looking back first.
_STOP = re.compile(
    rf"([{_STOPS}](?<![{_STOPS}][{_STOPS}])[{_STOPS}]*+)(?:(?P<wide>(?<=[{_WIDE}]))|(?<![{_WIDE}]))"
    rf"(?=((?:[{_CLOSING}]|\[\d{{1,3}}\]|(?(wide)(?!)|[\u201c\u2018]))*))\3(?(wide)\s*+|\s++)(?!\Z)"
)
_NEXT = re.compile(rf"(?:[{_OPENING}]++\s*+)*(?P<word>\w[\w'\u2019]*+)?(?P<space>\s?)")
_LETTER = re.compile(r"[^\W\d_]")
_NUMBERING = re.compile(r"\W*+(?:\d[\d.]*+[a-z]?|[A-Za-z]|[IVXL]++|[ivx]++)\W*+")  # of a list: 1. a) (IV)
_NUMBER = re.compile(r"\d.*|[IVXLC]+|[ivxlc]+")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_NAME_SPEAKS = re.compile(
    r"[\"'\u201c\u2018]*+(?:(?:(?:Mr|Mrs|Dr|St)\.|[A-Z][\w'\u2019-]*+)\s++){1,3}(?:[a-z]+ly\s++)?"
    rf"(?:{'|'.join(sorted(abbreviations.SAYING))})\b"
)
_BEFORE_TOKEN = re.compile(r"[^\w.'\u2019]")
_LONGEST_NUMBERING = 20
_REACH = 40  # characters before a full stop in which its word is looked for


@dataclass(frozen=True)
class _Rules:
    """What a language knows of full stops; `english` tells whether it also knows how sentences begin."""

    english: bool
    ordinals: bool
    never: frozenset[str]
    before_numbers: frozenset[str]


@cache
def _rules(language: str) -> _Rules:
    if language == "en":
        return _Rules(True, False, abbreviations.BEFORE_NAMES, abbreviations.BEFORE_NUMBERS)
    never = abbreviations.OTHERS.get(language, frozenset[str]())
    return _Rules(False, language in abbreviations.WITH_ORDINALS, never, abbreviations.OTHERS_BEFORE_NUMBERS)


# ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────────────
# Each looks back no further than the sentence's start, and ahead no further than the next possible end, so that parts do not split again.


def _ends(text: str, rules: _Rules) -> Iterator[int]:
    """Where sentences end, white space included."""
    start = scanned = 0
    has_letter = False  # what has none is no sentence yet
    for found in _STOP.finditer(text):
        stop, closing, at, end = found[1], found[3], found.start(), found.end()
        has_letter = has_letter or _LETTER.search(text, scanned, at) is not None
        scanned = at
        following = _NEXT.match(text, end)
        assert following is not None  # it matches the empty string
        word = following["word"] or ""
        if not has_letter or word[:1].islower() or text[end] in _GOES_ON:
            continue
        if not word and following.end() == len(text):  # nothing but a quote or a dash is left
            continue
        if at - start < _LONGEST_NUMBERING and _NUMBERING.fullmatch(text, start, at):
            continue
        if closing and _PARTICLE.match(text, end):
            continue
        if stop == ".":
            if _belongs_to_word(text, start, at, word, following["space"], rules):
                continue
        elif closing and rules.english and closing[-1] in _QUOTES and _NAME_SPEAKS.match(text, end):
            continue
        yield end
        start = scanned = end
        has_letter = False


def _belongs_to_word(text: str, start: int, stop: int, following: str, space: str, rules: _Rules) -> bool:
    """Whether the full stop at `stop` is part of the word before it, and does not end a sentence."""
    token = "".join(text[max(start, stop - _REACH) : stop].rsplit(None, 1)[-1:])
    token = _BEFORE_TOKEN.split(token)[-1].lstrip("'\u2019.")
    spelled = token.capitalize() if len(token) > 1 and token.isupper() else token
    if token in rules.never or spelled in rules.never:
        return True
    number_follows = _NUMBER.fullmatch(following) is not None and following != "I"
    if number_follows and (token in rules.before_numbers or spelled in rules.before_numbers):
        return True
    if token.isdecimal() and not rules.english:
        return following[:1].isdecimal() or (rules.ordinals and len(token) <= 2)
    is_letter = len(token) == 1 and token.isalpha() and token.lower() != token.upper()
    if is_letter or _DOTTED.fullmatch(token) or (rules.english and token in abbreviations.ANYWHERE):
        starts = following.replace("\u2019", "'") in abbreviations.STARTERS and (len(following) > 1 or space != "")
        return not (rules.english and starts)
    return False
