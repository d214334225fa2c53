"""`finetune`: a model that is there goes on with text of a domain, and is kept as it was where that makes it no better.

RUN          as `pretrain` makes it; run.json also says how well the model predicted the held-out text `before`
RUN.corpus   the text, prepared with the model's own tokenizer
"""

import os
import time
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmofire.errors import DataError, InputError, ModelError, RecipeError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.config import BilmConfig
from elmofire.formats.initial import initial_weights
from elmofire.formats.weights import Weights
from elmofire.text.characters import ByteAlphabet
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import Vocabulary, write_vocabulary
from elmofire.train.corpus.prepare import Settings, prepare
from elmofire.train.corpus.reader import CORPUS_FILE, Corpus
from elmofire.train.corpus.report import long_sentences_note
from elmofire.train.pretrain import FINETUNE, require_torch, run_recipe
from elmofire.train.recipes import find_recipe
from elmofire.train.settings import Recipe

HELD_OUT = "heldout"
MODEL, NEW = "model", "new"  # whose words are predicted
Record = dict[str, Any]


def finetune(
    model: Loadable,
    texts: Sequence[str],
    *,
    output: str | Path,
    held_out: float | int | str = 0.05,
    vocab: str | None = None,
    device: str = "auto",
    settings: Sequence[str] = (),
    show: Callable[[Record], None] = lambda record: None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Go on training a model on text of a domain; the folder of the run, which loads as a model. The same call again goes on with it.

    `held_out` is a share of the lines (or records of JSON lines), how many as an int, or a file. `vocab` is "model" for the words that
    the model predicts, "new" for a new head with those of the text, or a file with the words of a head that comes without; by default the
    model's where it has a head. `settings` change the recipe `finetune`, as on the command line. `show` is called with every record of
    the run's log; the one of the kind "before" tells perplexities of the held-out text by the model as it was.
    """
    require_torch()
    weights = load_weights(model, vocab=None if vocab in (None, MODEL, NEW) else vocab)
    words = _words(weights, vocab)
    recipe = _recipe(weights, model, settings)
    folder = Path(output)
    data, first = Path(f"{folder}.corpus"), os.environ.get("RANK", "0") == "0"
    if first:
        _refuse_foreign_folders(folder)
        about = _corpus_settings(weights.tokenizer)
        corpus = _prepared(texts, held_out, data, words, about, progress)
    else:
        corpus = _awaited(data)
    start = _with_head(weights, corpus.vocabulary, seed=recipe.train.seed, own=words is not None)
    if not first:
        return run_recipe(recipe, data=data, output=folder, device=device, show=None, start=start)

    if start is not weights:
        _note(show, f"a new head for {start.config.head:,} words, which knows nothing yet")
    if told := long_sentences_note(corpus.table):
        _note(show, told)
    run_recipe(recipe, data=data, output=folder, device=device, show=show, start=start)
    before, after = perplexities(folder)
    if not after["mean"] < before["mean"]:
        _note(show, "the held-out text was predicted best before, so that model is kept; try a lower optimizer.rate")
    return folder


def _note(show: Callable[[Record], None], text: str) -> None:
    show({"update": 0, "kind": "note", "text": text})


def _refuse_foreign_folders(folder: Path) -> None:
    """Before the text is prepared, which takes its time; whether a run is this one is seen when the recipe is known."""
    from elmofire.train.run.folder import RECIPE_FILE, refuse_others

    if not (folder / RECIPE_FILE).is_file():
        refuse_others(folder, "")


def perplexities(run: str | Path) -> tuple[Record, Record]:
    """Of the held-out text: by the model that a run was started with, and by the best one so far."""
    from elmofire.train.files.best import read_run

    return read_run(run)["before"], dict(load_weights(run).training["held_out"])


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(weights: Weights, vocab: str | None) -> Vocabulary | None:
    """The words to predict; None: those of the text, with a new head."""
    config = weights.config
    if not isinstance(weights.alphabet, ByteAlphabet) or config.encoder.alphabet != "bytes" or config.encoder.words:
        reads = "whole words" if config.encoder.words else "characters of an alphabet of its own"
        raise ModelError(
            f"this model reads {reads}, and only models that read bytes are trained",
            hint="2018's models, TensorFlow checkpoints, TF-Hub modules and those of `elmofire pretrain` do",
        )
    if vocab == NEW:
        return None
    if not config.head:
        if vocab == MODEL:
            raise ModelError("this model has no head, so it predicts no words", hint=f"--vocab {NEW} gives it one")
        return None if vocab is None else weights.vocabulary
    if weights.vocabulary is None:
        raise ModelError(
            f"this model's head has {config.head:,} rows, but no vocabulary that says which words they are",
            hint=f"--vocab FILE, the vocabulary it was trained with; or --vocab {NEW}, a new head for the words of the text",
        )
    return weights.vocabulary


def _with_head(weights: Weights, vocabulary: Vocabulary, *, seed: int, own: bool) -> Weights:
    """The model itself, or with a new head in the place of its own."""
    if own and weights.config.head:
        return weights
    config = replace(weights.config, head=len(vocabulary))
    drawn = initial_weights(config, seed=seed).arrays
    head = {name: drawn[name] for name in ("head.weight", "head.bias")}
    return replace(weights, config=config, arrays=ChainMap(head, weights.arrays), vocabulary=vocabulary)  # pyright: ignore[reportArgumentType]


def _recipe(weights: Weights, model: Loadable, settings: Sequence[str]) -> Recipe:
    recipe = find_recipe(FINETUNE, settings)
    if recipe.model != BilmConfig():
        raise RecipeError("`model` is given, but the sizes are those of the model that is loaded")
    name = ", ".join(map(str, model)) if isinstance(model, tuple) else str(model)
    # The run's recipe names the model, so that another one is not taken for a run's own.
    return replace(recipe, description=f"{name} goes on.", model=replace(weights.config, head=0))


# ── the text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _corpus_settings(tokenizer: TokenizerInfo) -> Settings:
    """Words split as the model knows them. A line is a document: in a text of one file, some can then be held out."""
    settings = Settings(language=tokenizer.language, pretokenized=tokenizer.name == "whitespace", documents="records")
    if settings.tokenizer().info != tokenizer:
        raise ModelError(
            f"the model's tokenizer is {tokenizer.name} {tokenizer.version} for {tokenizer.language!r}, but text of this language is "
            f"now split by {settings.tokenizer().info.name} {settings.tokenizer().info.version}"
        )
    return settings


def _prepared(
    texts: Sequence[str],
    held_out: float | int | str,
    folder: Path,
    words: Vocabulary | None,
    settings: Settings,
    progress: Callable[[int, int], None] | None,
) -> Corpus:
    if not isinstance(held_out, str):
        if not held_out > 0:
            raise InputError(
                f"held_out is {held_out}, but some text should be held out", hint="the best model is told by it"
            )
        settings = replace(settings, held_out=held_out, held_out_name=HELD_OUT)
    file = folder.with_name(f"{folder.name}.vocab.txt")
    if words is not None:
        settings = replace(settings, vocabulary=str(file))
        _write_words(file, words)
    texts_apart = {HELD_OUT: [held_out]} if isinstance(held_out, str) else {}
    try:
        corpus = prepare(texts, folder, settings, held_out_texts=texts_apart, progress=progress)
    except (InputError, DataError) as error:  # what is mended now is another run
        file.unlink(missing_ok=True)
        message, _, hint = str(error).partition("\nhint: ")
        if "--documents" not in hint:
            raise
        raise DataError(message, hint="a line is a document here; --held-out FILE takes text of its own") from None
    file.unlink(missing_ok=True)
    return corpus


def _write_words(file: Path, words: Vocabulary) -> None:
    """Not again if it is there: preparing goes on only with the files it began with."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_vocabulary(aside, words)
    if file.is_file() and file.read_bytes() == aside.read_bytes():
        aside.unlink()
    else:
        aside.replace(file)


def _awaited(folder: Path) -> Corpus:
    """What the first process prepares; should it fail, `torchrun` ends the others."""
    while not (folder / CORPUS_FILE).is_file():
        time.sleep(1)
    return Corpus.open(folder)
