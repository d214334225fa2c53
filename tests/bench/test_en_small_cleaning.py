"""What is taken out of en-small's text, by examples of each rule, and what must stay as it is."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DROPPED = {
    "begins with a small letter": [
        "where m is the mass and v the velocity.",
        "\u03b1 is the angle between them.",
        "s of the kind that is sold in Paris.",  # no mark for readers, so "As of" was not what it began with
    ],
    "formulas": [
        'If "a" ≠ 0 and "m" = "b"/"a", the line rises.',
        'The product "x""y""z" is zero.',
        'Let "\u03b1" and "\u03b2" and "\u0393" be angles.',
    ],
    "a title is missing": [
        'She appeared in an episode of "" in 1998.',
        'He directed three films (among them "").',
        'The novel " " was her first.',
        'It was followed by ""',
    ],
}
MENDED = {
    "ligatures": [
        ("The ﬁrst oﬃcer of the ﬂeet.", "The first officer of the fleet."),
        ("The ﬀ and ﬄ, ﬅ and ﬆ", "The ff and ffl, st and st"),
    ],
    "As of": [
        ("s of 2012[ ], the town had a mayor.", "As of 2012, the town had a mayor."),
        ("It is small. s of May 2010[], it had ten houses.", "It is small. As of May 2010, it had ten houses."),
    ],
    "empty brackets": [
        ("The river [ ] is long.", "The river is long."),
        ("The river[] is long.", "The river is long."),
    ],
    "two full stops": [
        ("He died in 1901.. She did not.", "He died in 1901. She did not."),
        ("He worked for Smith & Co..", "He worked for Smith & Co."),
    ],
    "no space between sentences": [
        ("It was the end.The next year he left.", "It was the end. The next year he left."),
    ],
}
UNTOUCHED = [
    'The bank raised its rates, and he said: "No."',
    'She sang "Yes", "No" and "Maybe" in the play.',  # titles, not variables
    'The letter "a" follows "b" here.',  # two are no formula
    'He cried "Stop!" "Why?" she asked.',  # two quotes beside each other are no empty title
    'They called it "the "Big House"" for years.',  # a quote within a quote
    "He waited... and then it rained.",
    "It was ... long ago.",
    "The U.S.Army has e.g.Bases and node.js in it.",  # abbreviations and names
    "See array[0] and [sic] here.",
    "1929 was a year.",
    "École normale is in Paris.",
    "",
]


@pytest.fixture(scope="module")
def cleaned():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("en_small.cleaning").cleaned


def counted(counts: Counter[str]) -> dict[str, int]:
    return dict(+counts)


@pytest.mark.parametrize(("reason", "paragraph"), [(reason, one) for reason, some in DROPPED.items() for one in some])
def test_what_extraction_has_ruined_is_left_out_and_counted_once(cleaned, reason, paragraph):
    counts: Counter[str] = Counter()
    assert cleaned(paragraph, counts) is None
    assert counted(counts) == {f"dropped: {reason}": 1}


def of_rule(rule: str) -> list[tuple[str, str, str]]:
    return [(rule, before, after) for before, after in MENDED[rule]]


@pytest.mark.parametrize(("rule", "before", "after"), [case for rule in MENDED for case in of_rule(rule)])
def test_what_can_be_mended_is_and_is_counted(cleaned, rule, before, after):
    counts: Counter[str] = Counter()
    assert cleaned(before, counts) == after
    others = {"mended: empty brackets": 1} if rule == "As of" else {}  # its mark for readers
    assert counted(counts) == {f"mended: {rule}": 1} | others
    again: Counter[str] = Counter()
    assert cleaned(after, again) == after
    assert not counted(again)


@pytest.mark.parametrize("paragraph", UNTOUCHED)
def test_what_is_right_stays_as_it_is(cleaned, paragraph):
    counts: Counter[str] = Counter()
    assert cleaned(paragraph, counts) == paragraph
    assert not counted(counts)


def test_a_paragraph_is_counted_once_however_many_places_were_mended(cleaned):
    counts: Counter[str] = Counter({"mended: empty brackets": 4})
    assert cleaned("One[ ] and two[ ] and ﬁve.", counts) == "One and two and five."
    assert counted(counts) == {"mended: empty brackets": 5, "mended: ligatures": 1}


def test_every_rule_has_an_example(cleaned):
    module = importlib.import_module(cleaned.__module__)
    assert set(DROPPED) == set(module.DROPPED)
    assert set(MENDED) == {*module.MENDED, "ligatures"}
