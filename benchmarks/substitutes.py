"""How often the true word of held-out text is among the first ten substitutes: forward, backward, and both with several unigrams.

A small biLM over whole words is trained on all sentences but the last twentieth, on one thread; those it never sees are asked about. With --model a trained model is asked instead, about the whole text.
Run: python benchmarks/substitutes.py reviews.txt.xz
"""

import argparse
import collections
import itertools
import re

import numpy as np
import torch
import torch.nn.functional as F
from records import keep

from elmofire import BiLM, LanguageModel
from elmofire.formats.config import BilmConfig, EncoderConfig
from elmofire.formats.initial import initial_weights
from elmofire.lm.substitutes import Fillers, log_uniform
from elmofire.text.readers import read_sentences
from elmofire.text.tokenizers import tokenizer_for
from elmofire.text.vocabulary import Vocabulary

MARKERS = ["<S>", "</S>", "<UNK>"]
BATCH = 64


def sentences(path: str, most: int) -> list[list[str]]:
    """Lines cut at sentence ends and tokenized."""
    tokenizer = tokenizer_for("en")
    pieces = (piece for line in read_sentences(path) for piece in re.split(r"(?<=[.!?]) (?=[A-Z\"'])", str(line)))
    tokens = ([token.text for token in tokenizer(piece)] for piece in pieces)
    return list(itertools.islice((words for words in tokens if 3 <= len(words) <= 40), most))


def trained(text: list[list[str]], words: int, width: int, updates: int, seed: int) -> LanguageModel:
    """A model after so many updates."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # so small steps lose by more, most of all on a busy machine
    counts = collections.Counter(word for sentence in text for word in sentence)
    vocabulary = Vocabulary([*MARKERS, *[word for word, _ in counts.most_common(words - len(MARKERS))]])
    encoder = EncoderConfig(width=width, filters=(), projection=False, words=len(vocabulary), word_dim=width)
    config = BilmConfig(encoder=encoder, layers=1, cells=2 * width, projection=width, head=len(vocabulary))
    bilm = BiLM.from_weights(initial_weights(config, seed=seed, vocabulary=vocabulary))
    optimizer = torch.optim.Adam(bilm.parameters(), lr=2e-3)
    distinct = torch.arange(1, len(vocabulary) + 1)[:, None]  # every word is encoded: a table costs nothing
    rng = np.random.default_rng(seed)
    by_length = sorted(text, key=len)
    for _ in range(updates):
        first = int(rng.integers(len(by_length) - BATCH))
        ids = [torch.tensor(vocabulary.ids(["<S>", *line, "</S>"])) for line in by_length[first : first + BATCH]]
        targets = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
        lengths = torch.tensor([len(line) for line in ids])
        layers, _ = bilm.forward(distinct, targets.clamp(min=0), lengths)
        forward, backward = F.dropout(layers[-1], 0.1).chunk(2, dim=2)
        loss = sum(
            F.cross_entropy(bilm.head(rows).flatten(0, 1), wanted.flatten(), ignore_index=-100)
            for rows, wanted in ((forward[:, :-1], targets[:, 1:]), (backward[:, 1:], targets[:, :-1]))
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bilm.parameters(), 1.0)
        optimizer.step()
    return LanguageModel(bilm.weights(), device="cpu")


def rates(lm: LanguageModel, text: list[list[str]], top: int = 10) -> dict[str, float]:
    """Share of the known words that are among the first `top` fillers of their place, by way of ranking."""
    scorer = lm._scorer
    fillers = Fillers(scorer.vocabulary, start=scorer.start, end=scorer.end)
    bias = np.asarray(scorer.head.bias, dtype=np.float64)
    unigrams = {"no unigram": 0.0, "the head's bias": bias, "log-uniform by rank": log_uniform(len(bias))}
    hits: collections.Counter[str] = collections.Counter()
    places = 0
    for tokens, vectors in scorer.reader.stream(text, "top", boundaries=True):
        for position, token in enumerate(tokens):
            target = scorer.vocabulary.id(token)
            if not fillers.allowed[target]:
                continue
            places += 1
            forward, backward = (
                scorer.head.log_probabilities(scorer.reader.half(vectors[place], direction))
                for direction, place in (("forward", position), ("backward", position + 2))
            )
            ways = {"forward": forward, "backward": backward}
            for name, unigram in unigrams.items():
                ways[f"both, {name}"] = forward + backward - unigram
            for name, scores in ways.items():
                hits[name] += int((scores[fillers.allowed] > scores[target]).sum() < top)
    return {"places": places} | {name: round(count / places, 4) for name, count in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--model", help="ask this model instead of training one")
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--sentences", type=int, default=40_000)
    parser.add_argument("--words", type=int, default=3000)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    text = sentences(given.text, given.sentences)
    if given.model:
        lm, settings = LanguageModel.load(given.model, device="cpu"), {"model": given.model}
        asked = text
    else:
        asked = text[-(len(text) // 20) :]
        lm = trained(text[: -len(asked)], given.words, given.width, given.updates, given.seed)
        settings = {"words": given.words, "width": given.width, "updates": given.updates}
    asked = asked[:1000]
    perplexity = lm.perplexity(asked)
    keep(
        "substitutes",
        text=given.text.rsplit("/")[-1],
        sentences=len(text),
        **settings,
        seed=given.seed,
        forward=round(perplexity.forward or 0, 2),
        backward=round(perplexity.backward or 0, 2),
        top_10=rates(lm, asked),
    )


if __name__ == "__main__":
    main()
