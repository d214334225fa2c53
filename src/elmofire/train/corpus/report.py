"""What a prepared corpus holds: the figures in `corpus.json`, and as text."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.errors import InputError
from elmofire.formats.files import written_aside
from elmofire.terminal import counted
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.train.corpus.blocks import Block
from elmofire.train.corpus.reader import CORPUS_FILE, OVERLAPS_FILE, digest
from elmofire.train.corpus.selection import Overlap
from elmofire.train.corpus.shards import ShardCounts
from elmofire.train.corpus.words import SPECIALS, Words, frequency_order

ROOM = 48  # bytes of a word that a model with 50 characters reads
LONG = 1000  # words; no sentence has as many
_SORTED = 0.5  # a vocabulary by frequency of other text has more, one in another order less
_ENOUGH_WORDS = 50  # to tell
_MANY_SHORT = 0.1  # of an evaluation file's lines

# The languages with a code of two letters, all of ISO 639-1 and sh; of three letters there are thousands.
_TWO_LETTERS = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es et eu
fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn
ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os
pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt
tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""


def split_table(shards: Sequence[ShardCounts]) -> dict[str, Any]:
    """One split: its counts, how long its sentences are, its unknown words, and its shards."""
    counts: dict[int, int] = {}
    for shard in shards:
        for length, count in shard.lengths:
            counts[length] = counts.get(length, 0) + count
    lengths = np.array(sorted(counts), dtype=np.int64)
    reached = np.cumsum([counts[length] for length in lengths.tolist()])
    tokens = sum(shard.tokens for shard in shards)
    return {
        "documents": sum(shard.documents for shard in shards),
        "sentences": sum(shard.sentences for shard in shards),
        "tokens": tokens,
        "unknown": round(sum(shard.unknown for shard in shards) / max(tokens, 1), 6),
        "length": {
            "median": _quantile(lengths, reached, 0.5),
            "99%": _quantile(lengths, reached, 0.99),
            "longest": int(lengths[-1]) if len(lengths) else 0,
        },
        "shards": [
            {"name": shard.name, "documents": shard.documents, "sentences": shard.sentences, "tokens": shard.tokens}
            for shard in shards
        ],
    }


def _quantile(lengths: np.ndarray, reached: np.ndarray, share: float) -> int:
    return int(lengths[np.searchsorted(reached, share * reached[-1])]) if len(lengths) else 0


def words_table(words: Words, targets: np.ndarray, unknown: int) -> dict[str, Any]:
    """Types and their coverage: of the training text, as its words are read and as they are predicted."""
    total = max(int(words.counts.sum()), 1)
    sizes = np.fromiter(map(len, words.spellings), dtype=np.int64, count=len(words.spellings))
    sizes[: len(SPECIALS)] = 0
    known = targets != unknown
    return {
        "types": int((words.counts > 0).sum()),
        "seen_once": int((words.counts == 1).sum()),
        "coverage": round(int(words.counts[known].sum()) / total, 6),
        "vocabulary_seen": int((known & (words.counts > 0)).sum()),
        "vocabulary_order": round(frequency_order(words, targets, unknown), 3),
        f"types_over_{ROOM}_bytes": int(((sizes > ROOM) & (words.counts > 0)).sum()),
        f"tokens_over_{ROOM}_bytes": int(words.counts[sizes > ROOM].sum()),
        "longest_word_bytes": int(sizes.max()),
    }


def is_by_frequency(words: dict[str, Any]) -> bool:
    """Whether a vocabulary may be in the order of falling frequency, as a sampled softmax takes it to be, given `words_table`."""
    return words["vocabulary_order"] >= _SORTED or words["vocabulary_seen"] < _ENOUGH_WORDS


def order_note(words: dict[str, Any], vocabulary: int | str) -> str | None:
    """What to say of a given vocabulary in another order than that of this text's frequencies, given `words_table`."""
    if is_by_frequency(words):
        return None
    order = words["vocabulary_order"]
    return (
        f"{vocabulary}: the words do not stand by falling frequency in this text ({order:.2f}, where 1 is that order and 0 is any): "
        "with a sampled softmax the negatives would be the wrong ones; train with the full softmax, or give a number and have the "
        "vocabulary made"
    )


def long_sentences(blocks: Iterable[Block], paths: Sequence[str]) -> dict[str, Any]:
    """Sentences that are none, as when a text has no stops or its lines were lost: how many, and where the first one is."""
    count, first = 0, ""
    for block in blocks:
        places = np.flatnonzero(block.array("lengths") > LONG)
        count += len(places)
        if len(places) and not first:
            source = block.array("sources")[block.array("documents")[places[0]]]
            first = f"{paths[int(source)]}:{block.array('numbers')[places[0]]}"
    return {"sentences": count, "first": first} if count else {}


def long_sentences_note(table: dict[str, Any]) -> str | None:
    """What to say of them, given `corpus.json`."""
    found = table["report"].get("long_sentences")
    if not found:
        return None
    many = "a sentence has" if found["sentences"] == 1 else f"{found['sentences']:,} sentences have"
    return (
        f"{many} more than {LONG:,} words (the first in {found['first']}): were sentences found at all? "
        "Training reads such a one piece by piece, in many updates with little else in them"
    )


def unknown_note(table: dict[str, Any]) -> str | None:
    """What to say where a model would mostly learn to predict `<UNK>`, given `corpus.json`."""
    share = table["splits"]["train"]["unknown"]
    if share <= 0.5:
        return None
    given = isinstance(table["options"]["vocabulary"], str)
    question = (
        "is it one of this language, with words split and written in the same way" if given else "is it large enough"
    )
    return (
        f"{100 * share:.0f}% of the training tokens are not in the vocabulary, so a model would mostly learn to predict <UNK>: "
        f"{question}?"
    )


def covered_note(table: dict[str, Any]) -> str | None:
    """What to say where a vocabulary of the text's own leaves nothing out, given `corpus.json`."""
    words = table["report"]["words"]
    if words["coverage"] < 1 or isinstance(table["options"]["vocabulary"], str):
        return None
    rare = "; min_count=2 (--min-count 2) leaves out words that were seen once" if words["seen_once"] else ""
    return f"every word of the training text is in the vocabulary, so a model would not learn what <UNK> is{rare}"


def short_lines_notes(table: dict[str, Any]) -> list[str]:
    """What to say of evaluation files of which a good part could not be found, given `corpus.json`."""
    n = table["options"]["ngram"]
    return [
        f"{check['short']:,} of {counted(check['lines'], 'line')} of {check['file']} {'has' if check['short'] == 1 else 'have'} fewer "
        f"than {n} words and could not be found; ngram (--ngram) takes fewer"
        for check in table["report"]["overlaps"]
        if check.get("short", 0) > _MANY_SHORT * check.get("lines", 0)
    ]


def refuse_language_name(language: str) -> None:
    """`English` would be split by rules for all languages, or ask for an extra that `en` does not need.

    >>> refuse_language_name("English")
    Traceback (most recent call last):
    elmofire.errors.InputError: language is 'English', but should be a code of two or three letters
    hint: en for English, de for German, und where it is not known
    """
    if len(_primary(language)) > 3:
        raise InputError(
            f"language is {language!r}, but should be a code of two or three letters",
            hint="en for English, de for German, und where it is not known",
        )


def _primary(language: str) -> str:
    """The language itself, without a region or a script."""
    return re.split("[-_]", language.lower())[0]


def language_note(tokenizer: TokenizerInfo) -> str | None:
    """What to say of a code that no language has; it is taken, since ICU has rules for all.

    >>> language_note(TokenizerInfo("plain", "ko-KR", 1))
    >>> language_note(TokenizerInfo("icu", "xx", 1))
    "'xx' is no language code such as 'de': words are split by the tokenizer icu 1, as those of a language without rules of its own"
    """
    primary = _primary(tokenizer.language)
    if primary in ("", *_TWO_LETTERS.split()) or re.fullmatch("[a-z]{3}", primary):
        return None
    return (
        f"{tokenizer.language!r} is no language code such as 'de': words are split by the tokenizer {tokenizer.name} "
        f"{tokenizer.version}, as those of a language without rules of its own"
    )


def write_overlaps(
    folder: Path, found: Sequence[Overlap], texts: Sequence[str], checked: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Where evaluation text was found, line by line; how often, by file. `checked` is what each evaluation file holds."""
    if not checked:
        return []
    with written_aside(folder / OVERLAPS_FILE) as aside, aside.open("w", encoding="utf-8") as file:
        for overlap in found:
            places = {"text": texts[overlap.source], "line": overlap.line}
            places |= {"file": checked[overlap.file]["file"], "sentence": overlap.sentence, "words": overlap.words}
            file.write(json.dumps(places, ensure_ascii=False) + "\n")
    return [
        {**file, "sentences": sum(overlap.file == number for overlap in found)} for number, file in enumerate(checked)
    ]


def write_table(folder: Path, table: dict[str, Any]) -> None:
    """`corpus.json`, last: with it a folder is a corpus."""
    (folder / CORPUS_FILE).unlink(missing_ok=True)
    files = {file.name: {"bytes": file.stat().st_size, "blake2b": digest(file)} for file in sorted(folder.iterdir())}
    with written_aside(folder / CORPUS_FILE) as aside:
        aside.write_text(json.dumps({**table, "files": files}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report_lines(table: dict[str, Any]) -> list[str]:
    """The report of a corpus, given its `corpus.json`."""
    report = table["report"]
    lines = [f"{'':12}{'documents':>12}{'sentences':>13}{'tokens':>15}{'median':>8}{'longest':>9}{'unknown':>9}"]
    for name, split in table["splits"].items():
        length = split["length"]
        lines.append(
            f"{name:12}{split['documents']:12,}{split['sentences']:13,}{split['tokens']:15,}"
            f"{length['median']:8,}{length['longest']:9,}{100 * split['unknown']:8.2f}%"
        )
    words = report["words"]
    lines += [
        f"words       {counted(words['types'], 'type')}, {words['seen_once']:,} of them once",
        f"vocabulary  {table['vocabulary']:,} words cover {100 * words['coverage']:.2f}% of the training tokens",
        f"long words  {counted(words[f'tokens_over_{ROOM}_bytes'], 'token')} over {ROOM} bytes "
        f"({counted(words[f'types_over_{ROOM}_bytes'], 'type')}); the longest has {words['longest_word_bytes']:,}",
        f"tokenizer   {table['tokenizer']['name']} {table['tokenizer']['version']}"
        + (f", language {table['tokenizer']['language']}" if table["tokenizer"]["language"] else ""),
    ]
    rules = table["sentences"]["rules"]
    lines.append(f"sentences   {'lines of the text' if rules is None else f'split by rules {rules}'}")
    if report["duplicates"] is not None:
        unique = table["options"]["unique"].removesuffix("s")
        lines.append(f"duplicates  {counted(report['duplicates'], f'training {unique}')} left out")
    for check in report["overlaps"]:
        done = "left out" if table["options"]["drop_overlaps"] else "found"
        lines.append(
            f"overlaps    {counted(check['sentences'], 'training sentence')} {done} with {table['options']['ngram']} words in a row of "
            f"{check['file']}, which has {counted(check['ngrams'], 'such row')}"
        )
    return lines
