"""What a prepared corpus holds: the figures in `corpus.json`, and as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from elmofire.train.corpus.shards import ShardCounts
from elmofire.train.corpus.words import SPECIALS, Words, frequency_order

ROOM = 48  # bytes of a word that a model with 50 characters reads


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
        f"words       {words['types']:,} types, {words['seen_once']:,} of them once",
        f"vocabulary  {table['vocabulary']:,} words cover {100 * words['coverage']:.2f}% of the training tokens",
        f"long words  {words[f'tokens_over_{ROOM}_bytes']:,} tokens over {ROOM} bytes "
        f"({words[f'types_over_{ROOM}_bytes']:,} types); the longest has {words['longest_word_bytes']:,}",
        f"tokenizer   {table['tokenizer']['name']} {table['tokenizer']['version']}"
        + (f", language {table['tokenizer']['language']}" if table["tokenizer"]["language"] else ""),
    ]
    rules = table["sentences"]["rules"]
    lines.append(f"sentences   {'lines of the text' if rules is None else f'split by rules {rules}'}")
    if report["duplicates"] is not None:
        lines.append(f"duplicates  {report['duplicates']:,} training {table['options']['unique']} left out")
    for check in report["overlaps"]:
        done = "left out" if table["options"]["drop_overlaps"] else "found"
        lines.append(
            f"overlaps    {check['sentences']:,} training sentences {done} with {table['options']['ngram']}-grams of {check['file']}"
            f" ({check['ngrams']:,})"
        )
    return lines
