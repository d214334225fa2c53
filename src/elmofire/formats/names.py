"""Models that load by name: those inside the package, the seeded one, the catalogue's (by address too), and Hugging Face repositories."""

import difflib
import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

from elmofire.errors import MissingExtra, ModelError
from elmofire.formats import config
from elmofire.formats.catalogue import Entry, catalogue, entry_named
from elmofire.formats.weights import Source, Weights, as_folder
from elmofire.text.tokenizers import TokenizerInfo, tokenizer_for

DEFAULT_MODEL = "en-small"
RANDOM_SMALL = "random-small"
_NAMED_AT_MOST = 5  # in an error

_PACKAGED = Path(__file__).parent.parent / "models"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+([^?#]*)")  # `C:/` is a drive; a Path leaves one slash


def packaged_models() -> list[str]:
    """The trained models that came with the package."""
    return sorted(folder.name for folder in _PACKAGED.iterdir() if folder.is_dir()) if _PACKAGED.is_dir() else []


def packaged_folder(name: str) -> Path | None:
    return _PACKAGED / name if name in packaged_models() else None


def model_named(name: str, *, quiet: bool = False) -> Path | None:
    """What to load for a name, a folder or an archive: fetched first if it is not here. None: nobody knows the name."""
    if packaged := packaged_folder(name):
        return packaged
    if entry_named(name):
        from elmofire.formats.catalogue.fetch import fetch  # 40 ms of http and ssl that no other model needs
        from elmofire.formats.catalogue.transfers import TransferLine

        with TransferLine(quiet=quiet) as line:
            return fetch(name, progress=line, note=line.note)
    if name.startswith("hf:"):
        return _from_hub(name.removeprefix("hf:"), quiet=quiet)
    if _REPOSITORY.fullmatch(name) and importlib.util.find_spec("huggingface_hub"):
        return _from_hub(name, quiet=quiet)
    return None


def is_name(what: str) -> bool:
    """Does it load by its name, and not as a path?"""
    return what in packaged_models() or (entry_named(what) is not None and not as_folder(what).exists())


def entry_at(address: str | os.PathLike[str]) -> Entry | None:
    """The catalogue's model that has a file at an address, as old code has it written; one whose files are here, if there is one.

    >>> entry_at("https://tfhub.dev/google/elmo/3").name, entry_at("elmo/weights.hdf5")
    ('google/elmo-3', None)
    """
    place = _place(address)
    found = [entry for entry in catalogue() for file in entry.files if place in map(_place, file.urls)] if place else []
    return next((entry for entry in found if entry.here), found[0] if found else None)


def fetched_at(address: str | os.PathLike[str]) -> Entry | None:
    """The same, once its files are known to be here; an error for an address that has none here, None for what is no address."""
    place, entry = _place(address), entry_at(address)
    if not place:
        return None
    if entry is None:
        known = {_place(url): entry.name for entry in catalogue() for file in entry.files for url in file.urls}
        near = difflib.get_close_matches(place, known, n=1, cutoff=0.9)
        raise ModelError(
            f"{os.fspath(address)}: is an address that is not in the catalogue"
            + (f"; the nearest there is {near[0]}, of {known[near[0]]}" if near else ""),
            hint="download the files and give their paths; `elmofire models` lists what can be fetched by name",
        )
    if not entry.here:
        raise ModelError(
            f"{os.fspath(address)}: is {entry.name} in the catalogue, and not on this machine yet",
            hint=f"fetch it once: elmofire models get {entry.name}",
        )
    from elmofire.formats.catalogue.fetch import fetch

    fetch(entry.name)  # nothing to download; files that were put here by hand are checked
    return entry


def local_file(what: str | os.PathLike[str]) -> Path:
    """A path as it is, and of an address the copy on this machine."""
    entry = fetched_at(what)
    if entry is None:
        return as_folder(what)
    return next(entry.folder / file.name for file in entry.files if _place(what) in map(_place, file.urls))


def _place(address: str | os.PathLike[str]) -> str:
    """Server and path of an address, "" for anything else: whether http or https, and how it is packed, makes no difference."""
    found = _ADDRESS.match(os.fspath(address))
    return found[1].rstrip("/") if found else ""


def _from_hub(repository: str, *, quiet: bool) -> Path:
    """A repository in our layout; its files are in huggingface_hub's own cache."""
    from elmofire.formats import native
    from elmofire.formats.catalogue.fetch import offline

    if not _REPOSITORY.fullmatch(repository):
        raise ModelError(f"hf:{repository}: a repository is named hf:OWNER/NAME")
    try:
        from huggingface_hub import snapshot_download, utils  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtra("loading from the Hugging Face hub", "hub") from None
    layout = [native.CONFIG, native.TENSORS, native.VOCABULARY, native.CHARACTERS, native.CARD]
    silenced = quiet and not utils.are_progress_bars_disabled()  # a switch of the whole program
    if silenced:
        utils.disable_progress_bars()
    try:
        folder = Path(snapshot_download(repository, allow_patterns=layout, local_files_only=offline()))
    except (OSError, ValueError) as error:  # what its errors are kinds of
        raise ModelError(
            f"hf:{repository}: cannot be fetched: {str(error).strip()}",
            hint="check the name, the network and, for a private repository, `hf auth login`",
        ) from None
    finally:
        if silenced:
            utils.enable_progress_bars()
    if not (folder / native.CONFIG).is_file():
        raise ModelError(f"hf:{repository}: holds no {native.CONFIG}, so no model in elmofire's layout")
    return folder


def with_language(name: str, weights: Weights) -> Weights:
    """The published files do not say which language they are for; the catalogue does, so that strings are split as they should."""
    entry = None if packaged_folder(name) else entry_named(name)  # those in the package say it themselves
    if entry is None:
        return weights
    try:
        tokenizer = tokenizer_for(entry.language).info
    except MissingExtra:  # is said when a string has to be split; lists of tokens need none
        tokenizer = TokenizerInfo("icu", entry.language, 1)
    # Known by its name from here on: where its files lie says nothing of its language.
    source = weights.source and replace(weights.source, what=name)
    return replace(weights, tokenizer=tokenizer, source=source)


def random_small() -> Weights:
    """The `small` size with seeded random weights: for trying things out. Its vectors carry no meaning."""
    from elmofire.formats.initial import initial_weights  # 15 ms of numpy.random that no trained model needs

    drawn = initial_weights(config.small(), seed=2018)
    return Weights(
        config=drawn.config,
        arrays=drawn.arrays,
        training={"note": "seeded random weights, never trained"},
        source=Source(RANDOM_SMALL, "seeded"),
    )


def unknown_model(what: str) -> ModelError:
    """No such name, and no such file or folder."""
    known = [*packaged_models(), RANDOM_SMALL]
    hint = (
        f"name a folder with a model, an options and a weight file, or one of: {', '.join(known)}; "
        "`elmofire models` lists those that can be downloaded"
    )
    if what == DEFAULT_MODEL:
        return ModelError(f"the default model {DEFAULT_MODEL} is not in this package", hint=hint)
    return ModelError(f"{what}: no such file or folder, and no model of that name{_meant(what, known)}", hint=hint)


def _meant(what: str, known: list[str]) -> str:
    """The names that come close: that in other letters, or some of an owner, or the nearest."""
    names = {name.casefold(): name for name in [*known, *(entry.name for entry in catalogue())]}
    asked = what.casefold()
    if of_owner := [name for key, name in names.items() if key.startswith(f"{asked.rstrip('/')}/")]:
        more = ", ..." if len(of_owner) > _NAMED_AT_MOST else ""
        return f"; models of {what.rstrip('/')}: {', '.join(of_owner[:_NAMED_AT_MOST])}{more}"
    near = [asked] if asked in names else difflib.get_close_matches(asked, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""
