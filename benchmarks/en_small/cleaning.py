"""What is left in the English text of the tools that extracted it, and hurts a language model."""

import re
from collections import Counter

# Paragraphs that are left out.
DROPPED = {
    # A formula, a table or a list stood before it and is gone: "where m is the mass."
    "begins with a small letter": re.compile(r"^[a-z\u03b1-\u03c9](?! of [A-Z0-9][^\[\]]{0,30}\[ ?\])"),
    # 'If "a" ≠ 0 and "m" = "b"/"a"': variables were in italics, which became quotes.
    "formulas": re.compile(r'(?:"[a-zA-Z\u03b1-\u03c9\u0391-\u03a9]"[^"]{0,12}){3}'),
    # 'an episode of the series "" included': the title was made by a template.
    "a title is missing": re.compile(r'(?:^|[\s(])" ?"(?=[\s.,;:)]|$)'),
}
_LIGATURES = str.maketrans({"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"})
# What is mended in those that stay, in this order.
MENDED = {
    # "s of 2012[ ], the" was "As of 2012, the" with a mark for readers.
    "As of": (re.compile(r"(?:(?<=[.!?] )|^)s of (?=[A-Z0-9][^\[\]]{0,30}\[ ?\])"), "As of "),
    "empty brackets": (re.compile(r" ?\[ ?\]"), ""),
    "two full stops": (re.compile(r"(?<![.\s])\.\.(?=\s|$)"), "."),
    "no space between sentences": (re.compile(r"(?<=[a-z]{3})\.(?=[A-Z][a-z]+ )"), ". "),
}


def cleaned(paragraph: str, counts: Counter[str]) -> str | None:
    """The paragraph with what can be mended, or None; `counts` of what was done go up."""
    for reason, pattern in DROPPED.items():
        if pattern.search(paragraph):
            counts[f"dropped: {reason}"] += 1
            return None
    mended = paragraph.translate(_LIGATURES)
    counts["mended: ligatures"] += mended != paragraph
    for what, (pattern, replacement) in MENDED.items():
        mended, places = pattern.subn(replacement, mended)
        counts[f"mended: {what}"] += places > 0
    return mended
