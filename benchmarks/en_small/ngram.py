"""The n-gram that en-small is measured against: modified Kneser-Ney of order 4 on the same sentences, tokens and vocabulary.

Run, in benchmarks: python -m en_small.ngram TOOL CORPUS, where TOOL is kneser_ney.py (../shared/tools); 12 GB and 10 minutes a direction
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from records import keep

from elmofire.train.corpus.reader import Corpus, Split

HELD_OUT = ("wiki", "books", "dev")
FIGURES = re.compile(
    r"(?P<direction>\w+) \S*?(?P<split>\w+)\.txt: perplexity (?P<perplexity>[\d.]+) over (?P<events>\d+) events, "
    r"unknown (?P<unknown>[\d.]+)%, order (?P<order>\d+), one distribution sums to (?P<sum>[\d.]+)"
)


def write(corpus: Corpus, split: Split, path: Path) -> None:
    """One sentence a line; words outside the vocabulary as they are, which the tool counts as unknown."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(split.sentences):
            words = corpus.spellings(split.sentence(number))
            if any(len(word.split()) != 1 for word in words):
                raise SystemExit(f"{split.name}, sentence {number}: a space in a word would make it two: {words}")
            file.write(" ".join(words) + "\n")


def main(tool: str, corpus: Corpus) -> None:
    with tempfile.TemporaryDirectory() as made:
        files = {name: Path(made) / f"{name}.txt" for name in ("train", *HELD_OUT)}
        for name, path in files.items():
            write(corpus, corpus.train if name == "train" else corpus.heldout[name], path)
        vocabulary = Path(made) / "vocab.txt"
        vocabulary.write_text("\n".join(corpus.vocabulary.words) + "\n", encoding="utf-8")
        command = [sys.executable, tool, "--vocab", str(vocabulary), "--train", str(files["train"]), "--held"]
        command += [str(files[name]) for name in HELD_OUT]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as said:
            for line in said.stdout or ():
                if not (found := FIGURES.match(line)):
                    raise SystemExit(f"not understood: {line}")
                keep("en_small_ngram", **found.groupdict(), training_tokens=corpus.train.tokens)
        if said.returncode:
            raise SystemExit(said.returncode)


if __name__ == "__main__":
    main(sys.argv[1], Corpus.open(sys.argv[2]))
