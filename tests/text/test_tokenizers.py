# ruff: noqa: RUF001 (typographic quotes and dashes are what is tested)
import lzma
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmofire.errors import InputError, MissingExtra
from elmofire.text.tokenizers import Token, Tokenizer, TokenizerInfo, load_tokenizer, tokenizer_for

TREEBANKS = Path(os.environ.get("ELMOFIRE_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "tasks" / "ud"
NAMES = ["penn", "plain", "whitespace", "icu"]


def tokenizer(name: str, language: str = "") -> Tokenizer:
    if name == "icu":
        pytest.importorskip("icu4py", reason="icu4py is not installed")
    return load_tokenizer(TokenizerInfo(name, language, 1))


def words(name: str, text: str, language: str = "") -> list[str]:
    return [token.text for token in tokenizer(name, language)(text)]


# ── what every tokenizer promises ───────────────────────────────────────────────────────────────────────────────────

# fmt: off
FRAGMENTS = [
    "a", "n't", "don't", "'s", "’", "'", ".", "..", "...", "…", "U.S.", "Mr.", "p.m.", "@", "x.com", "http://", "www.", "mailto:",
    "-", "--", "re-", "1", "23", "4,567", "3.14", "5pm", "/", ":", ")", "(", "&", "_", "#", "$", "US$", "<3", "->", "==", "***",
    ",", "%", "+", '""', "``", "cannot", "im", "ive", "gonna", "é", "e\u0301", "\u0301", "\u200d", "😀", "👩🏽", "🇩", "\ud800", "\udfff",
    "\0", "他今天", "ก\u0e33",
]
SLOW = [  # each is a way to make a pattern read on and come back
    "a.", "a-", "a-a.", "a@", "a@a.", "1-", "1/", "1,111", "a'", "a&", "n't", "http://!", "www..", "U.", "a_", "_", "a\u0301", "-", ".",
    ":)", "555-", "w/", "\u200d👩", "e-", "U.S.  ", "\t", "\ud800", "他",
]
# fmt: on
SPACES = [" ", "\t", "\n", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u202f", "\u3000"]
ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.lists(st.sampled_from(FRAGMENTS + SPACES)).map("".join)


@pytest.mark.parametrize(("name", "language"), [(name, "") for name in NAMES] + [("icu", "th"), ("icu", "ja")])
@given(text=ANY_TEXT)
def test_tokens_come_in_order_at_their_offsets_and_leave_out_white_space_only(name, language, text):
    tokens = tokenizer(name, language)(text)
    assert all(token.text == text[token.start : token.end] != "" for token in tokens)
    assert all(left.end <= right.start for left, right in pairwise(tokens))
    assert "".join(token.text for token in tokens) == "".join(text.split())


@given(text=ANY_TEXT)
def test_whitespace_is_str_split(text):
    assert words("whitespace", text) == text.split()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000"])
def test_nothing_but_white_space_has_no_tokens(name, text):
    assert tokenizer(name)(text) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_word_of_ten_thousand_letters_is_one_token(name):
    assert tokenizer(name)("x" + "é" * 9_999 + " y") == [
        Token("x" + "é" * 9_999, 0, 10_000),
        Token("y", 10_001, 10_002),
    ]


@pytest.mark.parametrize("name", ["penn", "plain", "icu"])
@pytest.mark.parametrize("unit", SLOW, ids=ascii)
def test_time_is_linear_for_strings_made_to_be_slow(name, unit):
    text = unit * (100_000 // len(unit))
    split = tokenizer(name)
    begin = time.process_time()
    split(text + "!")
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_survives_pickling(name):
    original = tokenizer(name, "de")
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    assert copy("Ein Test.") == original("Ein Test.")


def test_importing_tokenizers_loads_no_heavy_package():
    code = "import sys, elmofire.text.tokenizers as t; t.tokenizer_for('en')('a'); print({'numpy', 'torch', 'icu4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ── which one ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("language", "name"),
    [
        ("en", "penn"),
        ("en-US", "penn"),
        ("EN_gb", "penn"),
        ("ko", "plain"),
        ("", "plain"),
        ("und", "plain"),
        ("de", "icu"),
        ("zh-Hant", "icu"),
    ],
)
def test_a_language_has_its_tokenizer(language, name):
    if name == "icu":
        pytest.importorskip("icu4py", reason="icu4py is not installed")
    assert tokenizer_for(language).info == TokenizerInfo(name, language, 1)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"'moses'.*penn, plain, whitespace, icu"):
        load_tokenizer(TokenizerInfo("moses", "en", 1))


def test_a_newer_version_asks_for_an_upgrade():
    with pytest.raises(InputError, match=r"(?s)version 2 of tokenizer 'penn', this elmofire has 1.*--upgrade"):
        load_tokenizer(TokenizerInfo("penn", "en", 2))


def test_versions_count_from_one():
    with pytest.raises(InputError, match="'penn' has no version 0"):
        load_tokenizer(TokenizerInfo("penn", "en", 0))


def test_a_missing_icu_is_named_with_its_extra_when_the_tokenizer_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    with pytest.raises(MissingExtra, match=r"(?s)tokenizing text of language 'de'.*\.\[text\]"):
        tokenizer_for("de")


def test_a_language_that_is_no_code_is_an_error():
    pytest.importorskip("icu4py", reason="icu4py is not installed")
    with pytest.raises(InputError, match="is not a language code"):
        tokenizer_for("日本語")


# ── penn ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't, DON'T, don’t, can't", "I do n't , DO N'T , do n’t , ca n't"),
        ("I cannot, Cannot; gonna gotta wanna gimme", "I can not , Can not ; gon na got ta wan na gim me"),
        ("dont didnt Ive Im thats went want data him give", "do nt did nt I ve I m that s went want data him give"),
        ("It's we're I've he'll she’d I'm", "It 's we 're I 've he 'll she ’d I 'm"),
        ("the boys' dogs, O'Neill's o'clock", "the boys ' dogs , O'Neill 's o'clock"),
        ("get 'em in the '90s and 1960's", "get 'em in the '90s and 1960's"),
        ("Mr. Smith vs. Dr. J. Doe, Inc. No. 5", "Mr. Smith vs. Dr. J. Doe , Inc. No. 5"),
        (
            "No. The U.S. at 5 p.m. (e.g. now), a.k.a. Ph.D. it",
            "No . The U.S. at 5 p.m. ( e.g. now ) , a.k.a. Ph.D. it",
        ),
        ("It closed at 5 p.m.", "It closed at 5 p.m ."),
        ("cats, dogs, etc.", "cats , dogs , etc ."),
        ("So did I. Then", "So did I . Then"),
        ("$1,234.56, 50% of 3.14 or .5 at 10:30", "$ 1,234.56 , 50 % of 3.14 or .5 at 10:30"),
        ("11/28/2000 and 9/11 but 1/2, 5-10", "11/28/2000 and 9/11 but 1 / 2 , 5 - 10"),
        ("7pm 65k 10km 23rd 1980s B2B 3D 1,2,3", "7 pm 65 k 10 km 23rd 1980s B2B 3D 1 , 2 , 3"),
        ("713-853-3989 345-9945 1-800-991-9019", "713-853-3989 345-9945 1-800-991-9019"),
        ("to a.b-c@x.co.uk, see http://x.org/a?b=c.", "to a.b-c@x.co.uk , see http://x.org/a?b=c ."),
        ("(www.x.com) <mailto:a@b.de> report.doc x.com.", "( www.x.com ) < mailto:a@b.de > report.doc x.com ."),
        ("good.They said:no", "good . They said : no"),
        ("well-known e-mail non-profit mid-1980s al-Qaeda", "well - known e-mail non-profit mid-1980s al - Qaeda"),
        ("AT&T and/or w/o c/o", "AT&T and / or w/o c / o"),
        ("wait... what?! no!!! a--b – c—d", "wait ... what ?! no !!! a -- b – c — d"),
        (":) :-( ;) <3 ^_^ (ok:)", ":) :-( ;) <3 ^_^ ( ok :)"),
        ("\"Hi,\" ''he'' “said” ``so'' ‘it’", "\" Hi , \" '' he '' “ said ” `` so '' ‘ it ’"),
        ("[a] {b} <<c>> *** ====", "[ a ] { b } << c >> *** ===="),
        ("_so_ snake_case __init__ #tag @you #1 C++", "_ so _ snake_case __ init __ #tag @you # 1 C ++"),
        ("cafe\u0301's naïve 👩‍👩‍👧 👍🏽 🇩🇪🇫🇷 हिन्दी", "cafe\u0301 's naïve 👩‍👩‍👧 👍🏽 🇩🇪 🇫🇷 हिन्दी"),
    ],
)
def test_english_is_split_as_in_the_treebank(text, expected):
    assert words("penn", text) == expected.split(" ")


# ── plain and icu ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2006년 8월에, 1.2배에서 (서울)...", "2006년 8월에 , 1.2배에서 ( 서울 ) ..."),
        ("don't e-mail a.b 10:30 1,000.", "don ' t e - mail a . b 10:30 1,000 ."),
        ("हिन्दी cafe\u0301 نمی‌خواهم 👩🏽‍🚀 ❤️", "हिन्दी cafe\u0301 نمی‌خواهم 👩🏽‍🚀 ❤️"),
    ],
)
def test_plain_keeps_runs_of_letters_digits_and_marks(text, expected):
    assert words("plain", text) == expected.split(" ")


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("de", "Die E-Mail kam 1990-91... oder - nicht", "Die E-Mail kam 1990-91 ... oder - nicht"),
        ("tr", "Ankara'da 3,5 lira.", "Ankara'da 3,5 lira ."),
        ("th", "สวัสดีครับ", "สวัสดี ครับ"),
        ("zh", "今天天气很好。", "今天 天气 很好 。"),
        ("fr", "10\u202f000 km", "10 000 km"),
        ("de", "-a b- --c", "- a b - - - c"),
    ],
)
def test_icu_breaks_words_by_language(language, text, expected):
    assert words("icu", text, language) == expected.split(" ")


def test_icu_counts_characters_where_others_count_utf16_units():
    tokens = tokenizer("icu", "de")("😀 𝒳 \ud83d ja")
    assert tokens == [Token("😀", 0, 1), Token("𝒳", 2, 3), Token("\ud83d", 4, 5), Token("ja", 6, 8)]


# ── treebanks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def treebank(name: str, *, split_multiwords: bool) -> Iterator[tuple[str, list[str]]]:
    """Each sentence as (text, words); a multiword token counts as one or as its words."""
    path = TREEBANKS / f"{name}.conllu.xz"
    if not path.exists():
        pytest.skip(f"the treebank is not at {path}")
    text, gold, covered = "", [], 0
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("# text = "):
                text, gold, covered = line[9:].rstrip("\n"), [], 0
            elif not line.strip():
                yield text, gold
            elif line[0] != "#":
                place, form = line.split("\t")[:2]
                if place.isdecimal():
                    if int(place) > covered:
                        gold.append(form)
                elif "-" in place and not split_multiwords:
                    gold.append(form)
                    covered = int(place.split("-")[1])


def spans(words: list[str]) -> set[tuple[int, int]]:
    """The words' places among the characters that are no white space."""
    ends = [0]
    for word in words:
        ends.append(ends[-1] + len("".join(word.split())))
    return set(pairwise(ends))


@pytest.mark.parametrize(
    ("name", "split_multiwords", "least"),
    [
        ("en_ewt-ud-test", True, 99.0),
        ("ko_gsd-ud-test", False, 99.0),
        ("hu_szeged-ud-test", False, 98.5),
        ("tr_imst-ud-test", False, 99.0),
    ],
)
def test_tokens_are_those_of_the_treebank(name, split_multiwords, least):
    language = name[:2]
    if language not in ("en", "ko"):
        pytest.importorskip("icu4py", reason="icu4py is not installed")
    split = tokenizer_for(language)
    found = wanted = right = 0
    for text, gold in treebank(name, split_multiwords=split_multiwords):
        ours, theirs = spans([token.text for token in split(text)]), spans(gold)
        found, wanted, right = found + len(ours), wanted + len(theirs), right + len(ours & theirs)
    f1 = 200 * right / (found + wanted)
    print(f"{name}: F1 {f1:.2f} over {wanted} words")
    assert f1 >= least
