"""`finetune`: a model that is there goes on with text of a domain, and is kept as it was where that makes it no better.

RUN          as `pretrain` makes it; run.json also says how well the model predicted the held-out text `before`
RUN.corpus   the text, prepared with the model's own tokenizer
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from elmofire.errors import DataError, ElmofireError, InputError, ModelError, RecipeError
from elmofire.formats import Loadable, load_weights
from elmofire.formats.config import BilmConfig
from elmofire.formats.weights import Weights, as_folder
from elmofire.recipe import override
from elmofire.text.characters import ByteAlphabet
from elmofire.text.readers import home_expanded
from elmofire.text.tokenizers import Tokenizer, load_tokenizer
from elmofire.text.vocabulary import Vocabulary, write_vocabulary
from elmofire.train.corpus.prepare import prepare
from elmofire.train.corpus.reader import CORPUS_FILE, Corpus
from elmofire.train.corpus.report import long_sentences_note
from elmofire.train.corpus.selection import TooFewDocuments
from elmofire.train.corpus.sources import TextPath, find_sources, listed_paths
from elmofire.train.new_head import with_new_head, words_of_head
from elmofire.train.pretrain import FINETUNE, require_torch, run_recipe
from elmofire.train.recipes import as_changes, find_recipe
from elmofire.train.settings import Recipe

HELD_OUT = "heldout"
MODEL, NEW = "model", "new"  # whose words are predicted
NEW_HEAD_RATE, NEW_HEAD_EPOCHS = 1e-3, 3.0  # the rate is that of the recipe `large`, which starts from nothing too
# Times a word of a new vocabulary is in the text: what was seen once stands for the words that were never seen.
RARE = 2
Record = dict[str, Any]


def finetune(
    model: Loadable,
    texts: Iterable[TextPath],
    *,
    output: str | os.PathLike[str],
    held_out: float | int | TextPath = 0.05,
    vocab: str | os.PathLike[str] | None = None,
    device: str = "auto",
    show: Callable[[Record], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Path:
    """Go on training a model on text of a domain; the folder of the run, which loads as a model. The same call again goes on with it.

    `texts` are files, folders, patterns or `hf:` data sets. `held_out` is a share of the lines (or records of JSON lines), how many as an
    int, or a file. `vocab` is "model" for the words that the model predicts, "new" for a new head with those of the text, or a file with
    the words of a head that comes without; by default the model's where it has a head. `settings` change the recipe `finetune`, as those
    of `pretrain` do: `epochs=3, rate=1e-4`. `show` is called with every record of the run's log; the one of the kind "before" tells
    perplexities of the held-out text by the model as it was. `progress` is called with the sentences and tokens that are prepared.

    >>> import tempfile
    >>> from elmofire import pretrain
    >>> folder = Path(tempfile.mkdtemp())
    >>> size = (folder / "text.txt").write_text("The cat sat.\\nThe dog sat.\\nThe cat ran.\\n")
    >>> corpus = prepare([folder / "text.txt"], folder / "corpus", processes=1)
    >>> sizes = {"cells": 8, "model.projection": 4, "encoder.width": 4, "filters": [[1, 4], [2, 4]]}
    >>> model = pretrain("tiny", data=corpus.folder, output=folder / "model", device="cpu", updates=2, **sizes)
    >>> run = finetune(model, [folder / "text.txt"], output=folder / "run", held_out=1, device="cpu", updates=2)
    >>> before, after = perplexities(run)
    >>> after["mean"] <= before["mean"]
    True
    """
    return finetune_changed(
        model,
        texts,
        as_changes(settings),
        output=output,
        held_out=held_out,
        vocab=vocab,
        device=device,
        show=show,
        progress=progress,
    )


def finetune_changed(
    model: Loadable,
    texts: Iterable[TextPath],
    changes: Sequence[str],
    *,
    output: str | os.PathLike[str],
    held_out: float | int | TextPath,
    vocab: str | os.PathLike[str] | None,
    device: str,
    show: Callable[[Record], None] | None,
    progress: Callable[[int, int], None] | None,
) -> Path:
    """`finetune`, with the recipe changed by `key=value`."""
    require_torch()
    show = show or (lambda record: None)
    texts = listed_paths(texts, "texts")
    if isinstance(held_out, str | os.PathLike):
        held_out = home_expanded(held_out)
    recipe = _recipe(changes)  # this and the files before anything that takes its time: a model to be fetched, torch
    _refuse_missing_text(texts, held_out)
    weights = load_weights(model, vocab=None if vocab in (None, MODEL, NEW) else vocab)
    words = _words(weights, vocab)
    own_head = words is not None and weights.config.head > 0
    if not own_head and words_of_head(weights) is None:
        recipe = _for_a_head_without_knowledge(recipe, changes)
    recipe = _named_after(recipe, model, weights)
    folder = as_folder(output)
    data, first = Path(f"{folder}.corpus"), os.environ.get("RANK", "0") == "0"
    if first:
        _refuse_device_and_folder(device, folder)
        made_before, begun_before = (data / CORPUS_FILE).is_file(), _has_begun(folder)
        corpus = _prepared(texts, held_out, data, words, load_tokenizer(weights.tokenizer), progress)
    else:
        made_before, begun_before, corpus = True, True, _awaited(data)
    start = weights if own_head else with_new_head(weights, corpus)
    if not first:
        return run_recipe(recipe, data=data, output=folder, device=device, show=None, start=start)

    if not own_head:
        _note(show, _about_new_head(weights, corpus, recipe))
    if told := long_sentences_note(corpus.table):
        _note(show, told)
    try:
        run_recipe(recipe, data=data, output=folder, device=device, show=show, start=start)
    except ElmofireError:
        if not made_before and (begun_before or not _has_begun(folder)):
            shutil.rmtree(data)
        raise
    before, after = perplexities(folder)
    if not after["mean"] < before["mean"]:
        _note(show, "the held-out text was predicted best before, so that model is kept; try a lower optimizer.rate")
    return folder


def _note(show: Callable[[Record], None], text: str) -> None:
    show({"update": 0, "kind": "note", "text": text})


def _refuse_missing_text(texts: Sequence[str], held_out: float | int | str) -> None:
    find_sources(texts)
    if isinstance(held_out, str):
        if re.fullmatch(r"[\d.]+%?", held_out) and not Path(held_out).exists():
            raise InputError(
                f"held_out is {held_out!r}, and there is no such file",
                hint="a share of the lines is a number: 0.05 for 5%",
            )
        find_sources([held_out])
    elif not held_out > 0:
        raise InputError(
            f"held_out is {held_out}, but some text should be held out", hint="the best model is told by it"
        )


def _refuse_device_and_folder(device: str, folder: Path) -> None:
    """Before the text is prepared, which takes its time; whether a run is this one is seen when the recipe is known."""
    from elmofire.train.run.folder import refuse_others
    from elmofire.train.run.ranks import joined

    if os.environ.get("WORLD_SIZE", "1") == "1":  # many would wait for each other
        with joined(device):
            pass
    if not _has_begun(folder):
        refuse_others(folder, "")


def _has_begun(run: Path) -> bool:
    from elmofire.train.run.folder import RECIPE_FILE

    return (run / RECIPE_FILE).is_file()


def perplexities(run: str | Path) -> tuple[Record, Record]:
    """Of the held-out text: by the model that a run was started with, and by the best one so far."""
    from elmofire.train.files.best import read_run

    return read_run(run)["before"], dict(load_weights(run).training["held_out"])


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(weights: Weights, vocab: str | os.PathLike[str] | None) -> Vocabulary | None:
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
            raise ModelError(
                "this model has no head, so it predicts no words", hint=f"vocab={NEW!r} (--vocab {NEW}) gives it one"
            )
        return None if vocab is None else weights.vocabulary
    if weights.vocabulary is None:
        raise ModelError(
            f"this model's head has {config.head:,} rows, but no vocabulary that says which words they are",
            hint=f"vocab=FILE (--vocab FILE) is the vocabulary it was trained with; vocab={NEW!r} (--vocab {NEW}) a new head for the words of the text",
        )
    return weights.vocabulary


def _about_new_head(weights: Weights, corpus: Corpus, recipe: Recipe) -> str:
    about, old = f"a new head for {len(corpus.vocabulary):,} words", words_of_head(weights)
    if old is not None:
        kept = len({*corpus.vocabulary.words} & {*old.words})
        return f"{about}, {kept:,} of them with the rows that the old one had"
    long = f" and epochs are {recipe.train.epochs:g}" if recipe.train.epochs else ""
    return f"{about}, which knows how frequent they are and no more: optimizer.rate is {recipe.optimizer.rate:g}{long}"


# ── the recipe ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _recipe(changes: Sequence[str]) -> Recipe:
    recipe = find_recipe(FINETUNE, changes)
    if recipe.model != BilmConfig():
        raise RecipeError("`model` is given, but the sizes are those of the model that is loaded")
    return recipe


def _for_a_head_without_knowledge(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Faster and longer, unless the changes say otherwise: at the recipe's own rate it would learn next to nothing."""
    given = override({}, Recipe, changes)
    if "rate" not in given.get("optimizer", {}):
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, rate=NEW_HEAD_RATE))
    if not {"updates", "epochs"} & set(given.get("train", {})):
        recipe = replace(recipe, train=replace(recipe.train, epochs=NEW_HEAD_EPOCHS))
    return recipe


def _named_after(recipe: Recipe, model: Loadable, weights: Weights) -> Recipe:
    """The run's recipe names the model and holds a digest of its numbers, so that no other is taken for a run's own.

    Folders stay out of it: the recipe travels with the model, and a run goes on also when the model it began with was moved.
    """
    parts = model if isinstance(model, tuple) else (model,)
    name = ", ".join(as_folder(part).resolve().name if as_folder(part).exists() else str(part) for part in parts)
    digest = hashlib.blake2b(digest_size=4)
    for array in weights.arrays.values():
        digest.update(np.ascontiguousarray(array).data)
    return replace(recipe, description=f"{name} ({digest.hexdigest()}) goes on.", model=replace(weights.config, head=0))


# ── the text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prepared(
    texts: Sequence[str],
    held_out: float | int | str,
    folder: Path,
    words: Vocabulary | None,
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None,
) -> Corpus:
    """Words are split as the model knows them. A line is a document: in a text of one file, some can then be held out."""
    about = tokenizer.info
    settings: dict[str, Any] = {
        "language": about.language,
        "pretokenized": about.name == "whitespace",
        "documents": "records",
        "min_count": 1 if words else RARE,
    }
    if isinstance(held_out, str):
        settings["held_out_texts"] = {HELD_OUT: [held_out]}
    else:
        settings |= {"held_out": held_out, "held_out_name": HELD_OUT}
    file = folder.with_name(f"{folder.name}.vocab.txt")
    if words is not None:
        settings["vocabulary"] = file
        _write_words(file, words)
    try:
        corpus = prepare(texts, folder, tokenizer=tokenizer, progress=progress, **settings)
    except ElmofireError as error:
        # Where there are parts, the same command again goes on with them, and with this file.
        if not Path(f"{folder}.parts").exists():
            file.unlink(missing_ok=True)
        if isinstance(error, TooFewDocuments):
            hint = "a line is a document here; held_out=FILE (--held-out FILE) takes text of its own"
            raise DataError(error.message, hint=hint) from None
        raise
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
