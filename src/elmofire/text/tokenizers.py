"""From a sentence to its tokens, with the place of each in the string.

    penn        English, split as in the Penn Treebank and UD English-EWT: do n't, it 's, can not, well - known
    plain       any language, none known: runs of letters, digits and marks (3.14 and ... too), each other symbol alone
    whitespace  what stands between spaces, for text that is tokenized already
    icu         the word breaks of Unicode, with ICU's dictionaries for Chinese, Japanese, Thai, ... (extra `text`)

All give the same promise for any string: tokens come in order, hold no white space, leave out nothing else, and
`string[token.start:token.end] == token.text`. Nothing is rewritten, neither quotes nor case. Time is linear in the length.

A model is only as good as its tokens are the ones it was trained on. So its config records name, language and version;
a change in what a tokenizer splits is a new version, and the old one stays.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from elmofire.errors import InputError, MissingExtra


class Token(NamedTuple):
    """A word and its place: `string[start:end] == text`."""

    text: str
    start: int
    end: int


_Split = Callable[[str], Iterable[Token]]


@dataclass(frozen=True)
class TokenizerInfo:
    """Which tokenizer: what a model's config records."""

    name: str
    language: str
    version: int


@dataclass(frozen=True)
class Tokenizer:
    """A function from a string to its tokens that knows which tokenizer it is. Made by `load_tokenizer`.

    >>> [token.text for token in tokenizer_for("en")("I can't.")]
    ['I', 'ca', "n't", '.']
    """

    info: TokenizerInfo
    split: _Split = field(repr=False, compare=False)

    def __call__(self, text: str) -> list[Token]:
        return list(self.split(text))

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone; of a long line each distinct one once: a million are 8 MB then, not 200."""
        if isinstance(self.split, _Matches) and len(text) < 100_000:
            return self.split.texts(text)
        seen: dict[str, str] = {}
        return [seen.setdefault(token.text, token.text) for token in self.split(text)]

    def __reduce__(self) -> tuple[Callable[[TokenizerInfo], "Tokenizer"], tuple[TokenizerInfo]]:
        return load_tokenizer, (self.info,)  # ICU objects and closures do not pickle, the name does


def load_tokenizer(info: TokenizerInfo) -> Tokenizer:
    """The tokenizer that a config names.

    >>> load_tokenizer(TokenizerInfo("whitespace", "", 1))("to  be")
    [Token(text='to', start=0, end=2), Token(text='be', start=4, end=6)]
    """
    if info.name not in _TOKENIZERS:
        raise InputError(f"unknown tokenizer {info.name!r}: the known ones are {', '.join(_TOKENIZERS)}")
    newest, make = _TOKENIZERS[info.name]
    if info.version > newest:
        wanted = f"the model wants version {info.version} of tokenizer {info.name!r}"
        raise InputError(f"{wanted}, this elmofire has {newest}", hint="pip install --upgrade elmofire")
    if info.version < 1:
        raise InputError(f"tokenizer {info.name!r} has no version {info.version}: versions count from 1")
    return Tokenizer(info, make(info.language))


def tokenizer_for(language: str) -> Tokenizer:
    """The tokenizer for raw text of a language, given by its code; "" or "und" where it is not known.

    >>> tokenizer_for("ko").info
    TokenizerInfo(name='plain', language='ko', version=1)
    """
    primary = re.split("[-_]", language.lower())[0]
    name = {"en": "penn", "ko": "plain", "": "plain", "und": "plain"}.get(primary, "icu")
    return load_tokenizer(TokenizerInfo(name, language, _TOKENIZERS[name][0]))


# ── patterns ────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each alternative scans what it may take at most once: repeats of characters are possessive, those of groups are followed by what always
# matches, or they start only where a run starts (a lookbehind says so). Without that, a long a.a.a.a or a-a-a-a would take quadratic time.
# No group is possessive or atomic: Python 3.11.0 to 3.11.4 match such ones wrongly.


@cache
def _marks() -> str:
    """What belongs to the character before it, as the inside of a character class: accents, vowel signs, joiners.

    `\\w` has no marks, so without this a decomposed é or a Hindi word falls to pieces. Soft hyphens, joiners, skin
    tones and tags are no marks by category, but behave as such.
    """
    others = "\u00ad\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\U000e0100-\U000e01ef"
    ranges: list[list[int]] = []  # ranges match three times as fast as two thousand characters
    for point in range(0x300, 0x1F000):
        if unicodedata.category(chr(point))[0] == "M":
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    return others + "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# A symbol takes its marks with it, an emoji what is joined to it; two regional indicators are a flag.
_SYMBOL = r"[\U0001f1e6-\U0001f1ff]{2} | \S (?:[MARKS] | (?<=\u200d)[^\w\s])*"

_PLAIN = rf"""
  \d++ (?:[.,:]\d++)* [\wMARKS]*+
| [\wMARKS]++
| \.\.++
| {_SYMBOL}
"""

_LISTS = {  # the words that the pattern names in capitals
    "ABBREVIATIONS": """
        Mr Mrs Ms Messrs Dr Drs Prof Rev Hon Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Gov Sen Sens Rep Reps Jr Sr Esq
        St Sts Mt Ft Ave Blvd Rd Inc Corp Co Ltd Bros Dept Univ Assn vs etc al cf eg ie approx esp [Ee]xt [Aa]ttn
        [Vv]ol [Ff]igs? Eq Sec oz lbs? hrs yrs mins Mon Tue Tues Wed Thu Thur Thurs Fri Sat
        Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Ala Ariz Ark Calif Colo Conn Fla Ga Ill Ind Kan Ky La Md Mich
        Minn Mo Mont Neb Nev Okla Ore Pa Tenn Tex Va Vt Wis Wyo""",
    "PREFIXES": """
        anti arch bi co counter cross de e ex intra micro mid multi neo non over post pre pro pseudo psycho quasi re
        semi socio sub tri ultra un""",
    "UNITS": "am pm AM PM k K m M mm MM b bn B t cm km kg lb lbs ft hrs mins x gb GB mb MB kb Hz sq",
    "ENDINGS": "com org net edu gov mil info uk doc xls ppt txt pdf htm html jpg gif zip exe url",
    "CLITICS": "s re ve ll d m",
}

_PENN = r"""
  # most words: nothing to split, and nothing near that could belong to them
  [A-Za-z]++ (?=[ ,)"?!;\n]|\.?\Z) (?<![nN][tTaA]) (?<!nnot|NNOT) (?<!tta|mme|ats) (?<!\b[iI]m) (?<!\b[iI]ve)
| [,"] | \.(?![\w.?!\u2026])

  # addresses and files
| (?<![\w.+%-]) (?: [\w.+%-]++ @ [\w-]++ (?:\.[\w-]++)*
    | (?:[\w-]++\.)+ (?i:ENDINGS)\b (?!\.?\w) | [\w-]++ (?:\.[a-z][\w-]++){2,} )
| (?=[hfwm]) (?: (?:https?://|ftp://|www\.) [^\s<>"]* [\w/\#=&~+-] | mailto: [^\s<>"]* \w )

| (?=[A-Za-z]) (?:
    # two words written as one
    (?i: can(?=not\b) | (?:gon|wan)(?=na\b) | got(?=ta\b) | (?:gim|lem)(?=me\b) | (?:that|what)(?=s\b)
       | (?:do|does|did|ca|wo|ai|is|are|was|were|could|would|should|have|has|had)(?=nt\b) ) | [iI](?=(?:m|ve)\b)
    # do n't, and words with an apostrophe of their own: O'Neill
  | (?=[A-Za-z]++ APOSTROPHE) (?: [A-Za-z]+? (?=[nN]APOSTROPHE[tT]\b) | [nN]APOSTROPHE[tT]\b
      | [A-Za-z]++ APOSTROPHE (?!(?i:CLITICS)\b) [A-Za-z]++ )
    # a sentence's last full stop is never part of an abbreviation
  | (?=[A-Za-z]{1,7}\. (?!\s*\Z|\.)) (?: (?:ABBREVIATIONS)\. | [Nn]o\.(?=\s*\d) | [A-HJ-Z]\.(?!\w) )
  | (?:Ph\.|[A-Za-z]\.)+ (?: (?<=\.[A-Za-z]\.) (?!\w|\s*\Z) | [A-Za-z](?!\w) )
  | (?i:PREFIXES)-[^\W_]++
  | US\$ | (?:w/o|b/c)(?!\w)
  )

| (?=[\d.+'\u2019]) (?:
    # dates, telephone numbers, then numbers with what is written onto them (1990s, 3rd) but for units
    \d{1,2}/\d{1,2}/\d{2,4}(?!\d) | (?:1[0-2]|0?[1-9])/(?:[12]\d|3[01]|0[1-9])(?![\d/])
  | (?:\d[-.])? (?:\d{3}[-/])? \d{3}-\d{4}(?![\d-]) | \d{5}-\d{4}(?!\d) | \d\d?-\d\d?-(?:\d\d){1,2}(?!\d)
  | (?:(?<!\w)[+.])? \d++ (?:[.:]\d++|,\d{3}(?!\d))* (?: (?=(?:UNITS)\b) | (?<=0)APOSTROPHEs\b | [\wMARKS]*+ )
  | (?<!\w)APOSTROPHE\d\ds?(?!\w)
  )

| ['\u2019`] (?i:CLITICS|em|til|cause)\b
| (?: [:;=]['o-]?[()\[\]DPp/\\|*]++ | \(: | <3 | >:\( | \^[_.]?\^ )(?!\w)
| [^\W_]++ (?:&[^\W\d_]++)+
| [^\W_]++ (?:[_MARKS]++[^\W_]++)* [MARKS]*+
| [@\#][A-Za-z]\w*+
| \.{2,}+(?![!?]) | [.?!\u2026]{2,}+ | [-=*~+|<>\#]{3,}+ | -- | << | >> | == | \*\* | \+\+ | -> | <- | \${2,}+ | __++
| '' | `` | \u2019\u2019 | \u2018\u2019
| SYMBOL
"""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern with its lists filled in."""
    parts = {"SYMBOL": _SYMBOL, "MARKS": _marks(), "APOSTROPHE": r"['\u2019]"} | {
        name: "|".join(words.split()) for name, words in _LISTS.items()
    }
    for name, part in parts.items():
        pattern = pattern.replace(name, part)
    return re.compile(pattern, re.VERBOSE)


# ── tokenizers ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Matches:
    """Each match of the pattern is a token."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern  # compiled with the first text: loading a model should not wait for it

    def __call__(self, text: str) -> Iterator[Token]:
        return (Token(match[0], match.start(), match.end()) for match in _compiled(self._pattern).finditer(text))

    def texts(self, text: str) -> list[str]:
        """Without their places, in less than half the time: whole corpora are split so."""
        return _compiled(self._pattern).findall(text)


def _icu(language: str) -> _Split:
    """ICU's word breaks, but hyphenated words and rows of dots stay whole, as in most treebanks."""
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise MissingExtra(f"tokenizing text of language {language!r}", "text") from None
    if not language.isascii():
        raise InputError(f"{language!r} is not a language code such as 'de' or 'zh-Hant'")
    words = re.compile(r"\S++")
    surrogates = re.compile("[\ud800-\udfff]")

    def split(text: str) -> list[Token]:
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        # Pieces, not ICU's offsets, which count UTF-16 units. Half a pair cannot be passed on; any symbol stands in.
        for piece in WordBreaker(surrogates.sub("\ufffd", text), language):
            begin, at = at, at + len(piece)
            for word in words.finditer(text, begin, at):  # a break may join spaces to a word: 10 000 with U+202F
                start, end = word.span()
                if starts and ends[-1] == start:
                    if text[start] == "." == text[starts[-1]]:
                        ends[-1] = end
                        continue
                    hyphen = text[start - 1] == "-" and len(ends) > 1 and ends[-2] == starts[-1] == start - 1
                    if hyphen and text[start].isalnum() and text[start - 2].isalnum():
                        starts.pop()
                        ends[-2:] = [end]
                        continue
                starts.append(start)
                ends.append(end)
        return [Token(text[start:end], start, end) for start, end in zip(starts, ends, strict=True)]

    return split


# name: (newest version, how to make it for a language)
_TOKENIZERS: dict[str, tuple[int, Callable[[str], _Split]]] = {
    "penn": (1, lambda language: _Matches(_PENN)),
    "plain": (1, lambda language: _Matches(_PLAIN)),
    "whitespace": (1, lambda language: _Matches(r"\S++")),
    "icu": (1, _icu),
}
