"""Files become `Weights` and `Weights` become files; what a path holds is found out, not asked."""

import contextlib
import os
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from elmofire.errors import ModelError
from elmofire.formats import names
from elmofire.formats.files import read_json_object
from elmofire.formats.weights import Weights, as_folder, refuse_no_model
from elmofire.recipe import shown
from elmofire.text.vocabulary import read_vocabulary

Loadable = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]]

FORMATS = ("native", "hdf5")
RUN_FILE = "run.json"  # of a training run: names the folder of its best model
BEST_MODEL = re.compile(r"best-\d{8,}(-again)?")

_ARCHIVES, _BARE_WEIGHTS = (".tar.gz", ".tgz", ".zip"), (".th",)
_OF_THE_HEAD = ("weights", "softmax_weights")  # in a file's name: the weights', and that of their head beside them
_KNOWN = (
    "config.json + model.safetensors; options.json + an HDF5 file; ELMoForManyLangs' encoder.pkl and its companions; TensorFlow "
    "checkpoints and TF-Hub modules; AllenNLP's model.tar.gz or weights.th; zips of the first three; the folder of a training run"
)


def load_weights(
    what: Loadable = names.DEFAULT_MODEL,
    *,
    options: str | os.PathLike[str] | None = None,
    vocab: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Weights:
    """Load a model by name, from a folder or an archive, or from an (options, weights) pair.

    An address of the catalogue stands for the copy that `elmofire models get` has fetched.
    `options` is an options.json for files that come without one; `vocab` a vocabulary for a head that comes without.
    With `quiet`, a model that has to be fetched first is fetched without progress on stderr.

    >>> load_weights("en-small").config.cells
    1024
    """
    refuse_no_model(what)
    given = _Given(
        options=None if options is None else as_folder(options),
        vocab=None if vocab is None else as_folder(vocab),
        quiet=quiet,
    )
    weights = _load(what, given)
    if given.vocab is None:
        return weights
    vocabulary = read_vocabulary(given.vocab)
    if weights.config.head not in (0, len(vocabulary)):
        raise ModelError(
            f"{given.vocab}: has {len(vocabulary)} words, but the model's head has {weights.config.head} rows"
        )
    return replace(weights, vocabulary=vocabulary)


@dataclass(frozen=True)
class _Given:
    """What the caller adds to a model's own files."""

    options: Path | None
    vocab: Path | None
    quiet: bool  # while a model is fetched

    def vocabulary_for(self, folder: Path) -> Path | None:
        return self.vocab or _vocabulary_in(folder)

    def refuse_options(self, what: Path) -> None:
        if self.options is not None:
            raise ModelError(
                f"{what}: has its own settings", hint="options are for models whose files come without them"
            )


def _load(what: Loadable, given: _Given) -> Weights:
    if isinstance(what, tuple | list):
        if len(what) != 2:
            raise ModelError(f"a pair of files is (options, weights), but {len(what)} were given")
        weights = _load_pair(names.local_file(what[0]), names.local_file(what[1]), given)
        entry = names.entry_at(what[1])
        return names.with_language(entry.name, weights) if entry else weights
    if entry := names.fetched_at(what):
        what = entry.name
    path = as_folder(what)
    if packaged := names.packaged_folder(os.fspath(what)):  # by its name: a folder of the same name would need a `./`
        if path.exists():
            warnings.warn(f"{what} is the model in the package; what is called so here is ./{what}", stacklevel=3)
        weights = _load_folder(packaged, given)
        return replace(weights, source=weights.source and replace(weights.source, what=os.fspath(what)))
    if path.is_dir():
        return _load_folder(path, given)
    if path.exists() or path.with_name(f"{path.name}.index").is_file():
        return _load_file(path, given)
    name = os.fspath(what)
    if name == names.RANDOM_SMALL:
        return names.random_small()
    found = names.model_named(name, quiet=given.quiet)
    if found is None:
        raise names.unknown_model(name)
    weights = _load_folder(found, given) if found.is_dir() else _load_file(found, given)
    return names.with_language(name, weights)


def save_weights(
    weights: Weights, folder: str | os.PathLike[str], to: str = "native", *, storage: str | None = None
) -> None:
    """Write a model folder as `native` or as 2018's `hdf5`.

    `storage` of native files is float32, bfloat16, float16 or int8, by default that of the model's own file, with whose card it goes;
    hdf5 has float32 alone.
    """
    if to == "native":
        from elmofire.formats import native

        own = native.storage_of(weights)
        card = native.card_of(weights) if storage in (None, own) else None  # it says how the numbers are stored
        native.write(weights, as_folder(folder), storage=storage or own, card=card)
    elif to == "hdf5":
        from elmofire.formats.published import hdf5_2018

        if storage not in (None, "float32"):
            raise ModelError(f"hdf5 is always stored as float32, not {storage}", hint="native files can be smaller")
        hdf5_2018.write(weights, as_folder(folder))
    else:
        raise ModelError(f"cannot write the format {to!r}", hint=f"known are {', '.join(FORMATS)}")


def _load_folder(folder: Path, given: _Given) -> Weights:
    from elmofire.formats import native

    if native.recognizes(folder):  # before the others' readers are imported, which takes longer than reading
        given.refuse_options(folder)
        return native.read(folder)
    if (folder / RUN_FILE).is_file():
        return _load_run(folder, given)
    from elmofire.formats.published.from_tensorflow import tf1
    from elmofire.formats.published.from_torch import manylangs

    if manylangs.recognizes(folder):
        given.refuse_options(folder)
        return manylangs.read(folder)
    if tf1.recognizes(folder):
        return tf1.read(folder, options=given.options, vocabulary_file=given.vocabulary_for(folder))
    weight_files = sorted(folder.glob("*.hdf5")) + sorted(folder.glob("*.h5"))
    options_files = [given.options] if given.options else _options_in(folder)
    if weight_files and options_files:
        return _load_2018_folder(folder, options_files, weight_files, given)
    if not weight_files and (archive := _archive_in(folder)):
        return _load_file(archive, given)
    found = ", ".join(sorted(file.name for file in folder.iterdir())[:12]) or "nothing"
    if (folder / native.CONFIG).is_file():
        raise ModelError(f"{folder}: {native.TENSORS} is missing beside {native.CONFIG}; the folder holds {found}")
    if weight_files:
        raise ModelError(
            f"{folder}: no options file (options.json) beside {weight_files[0].name}; the folder holds {found}"
        )
    raise ModelError(f"{folder}: holds no model that is known here; it holds {found}", hint=_KNOWN)


def _archive_in(folder: Path) -> Path | None:
    """The only one, as AllenNLP's training leaves it among much else; its bare weights where there is none."""
    files = sorted(folder.iterdir())
    for endings in (_ARCHIVES, _BARE_WEIGHTS):
        found = [file for file in files if file.name.endswith(endings)]
        if len(found) > 1:
            listed = ", ".join(file.name for file in found)
            raise ModelError(f"{folder}: several files that could be the model: {listed}", hint="name the one you mean")
        if found:
            return found[0]
    return None


def _load_run(run: Path, given: _Given) -> Weights:
    """The best model of a training run so far."""
    from elmofire.formats import native

    best = _best_of(run)
    try:
        given.refuse_options(best)
        return native.read(best)
    except (ModelError, OSError) as error:
        if _best_of(run) != best:  # the run goes on, and has put a better one in its place meanwhile
            return _load_run(run, given)
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{best}: cannot be read: {error.strerror}") from None


def _best_of(run: Path) -> Path:
    name = read_json_object(run / RUN_FILE).get("best")
    if name is None:
        raise ModelError(
            f"{run}: this training run has no evaluated model yet",
            hint="wait for its first evaluation on held-out text",
        )
    if not isinstance(name, str) or not BEST_MODEL.fullmatch(name):
        raise ModelError(
            f"{run / RUN_FILE}: best is {shown(name)}, but should be a folder's name such as best-00000500"
        )
    return run / name


def _load_file(file: Path, given: _Given) -> Weights:
    """An archive, or one file of a model."""
    from elmofire.formats import native
    from elmofire.formats.published import zips
    from elmofire.formats.published.from_tensorflow import tf1
    from elmofire.formats.published.from_torch import allennlp

    if file.name.endswith(".zip"):
        given.refuse_options(file)
        return zips.read(file)
    if file.name.endswith((*_ARCHIVES, *_BARE_WEIGHTS)):
        return allennlp.read(file, options=given.options)
    if tf1.recognizes(file):
        return tf1.read(file, options=given.options, vocabulary_file=given.vocabulary_for(file.parent))
    if _holds_vectors(file):
        raise ModelError(f"{file}: holds vectors, not a model", hint="elmofire.open_embeddings reads them")
    if native.recognizes(file.parent) and file.name in (native.CONFIG, native.TENSORS):
        raise ModelError(f"{file}: is one file of a model", hint=f"name its folder, {file.parent}")
    if file.suffix in (".hdf5", ".h5", ".json"):
        hint = f"name its folder, {file.parent}, or both files: OPTIONS,WEIGHTS on the command line, a pair in Python"
        raise ModelError(f"{file}: is one file of a model", hint=hint)
    raise ModelError(f"{file}: is no model that is known here", hint=_KNOWN)


def _holds_vectors(file: Path) -> bool:
    """Whether `elmofire embed` has written it."""
    match file.suffix.lower():
        case ".hdf5" | ".h5":
            import h5py

            with contextlib.suppress(OSError), h5py.File(file, "r") as opened:
                return "elmofire" in opened.attrs
        case ".npz":
            import zipfile

            with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(file) as opened:
                return {"vectors.npy", "offsets.npy"} <= set(opened.namelist())
        case ".safetensors":
            from elmofire.formats.tensors import MappedTensors

            with contextlib.suppress(ModelError):
                return "elmofire" in MappedTensors(file).metadata
    return False


def _load_2018_folder(folder: Path, options_files: list[Path], weight_files: list[Path], given: _Given) -> Weights:
    from elmofire.formats.published import hdf5_2018
    from elmofire.formats.published.datasets import DatasetFile

    if len(options_files) > 1:
        listed = ", ".join(file.name for file in options_files)
        raise ModelError(
            f"{folder}: several options files: {listed}", hint="load the pair (options, weights) that you mean"
        )
    opened = [DatasetFile(file) for file in weight_files]
    # A table of cached word vectors is called `embedding` too, but has no LSTM beside it.
    candidates = [
        file.path
        for file in opened
        if "char_embed" in file.names or ("embedding" in file.names and len(file.names) > 1)
    ]
    if not candidates:
        candidates = [file.path for file in opened if any(map(file.has, ("RNN_0", "RNN_1", "rnn")))]
    if not candidates:
        listed = ", ".join(file.name for file in weight_files)
        raise ModelError(f"{folder}: none of {listed} has char_embed or embedding, so none holds an ELMo's weights")
    if len(candidates) > 1:
        listed = ", ".join(file.name for file in candidates)
        raise ModelError(
            f"{folder}: several weight files: {listed}", hint="load the pair (options, weights) that you mean"
        )
    softmax = [file.path for file in opened if file.has("softmax") and file.path not in candidates]
    return hdf5_2018.read(
        options_files[0],
        candidates[0],
        softmax_file=softmax[0] if softmax else None,
        vocabulary_file=given.vocabulary_for(folder),
        what=None if given.options else str(folder),
    )


def _load_pair(options_file: Path, weight_file: Path, given: _Given) -> Weights:
    from elmofire.formats.published import hdf5_2018

    given.refuse_options(options_file)
    if weight_file.suffix == ".json" and options_file.suffix != ".json":
        raise ModelError(f"{weight_file} stands where the weights belong", hint="the options file comes first")
    for file in (options_file, weight_file):
        if not file.is_file():
            raise ModelError(f"{file}: no such file")
    return hdf5_2018.read(
        options_file,
        weight_file,
        softmax_file=_head_beside(weight_file),
        vocabulary_file=given.vocabulary_for(weight_file.parent),
    )


def _head_beside(weight_file: Path) -> Path | None:
    """The file that is named as the weights' head. Nobody named it, so a broken one is no error: most do without a head."""
    from elmofire.formats.published.datasets import DatasetFile

    file = weight_file.with_name(weight_file.name.replace(*_OF_THE_HEAD))
    if file == weight_file or not file.is_file():
        return None
    try:
        DatasetFile(file)
    except ModelError:
        warnings.warn(f"{file}: is not a whole HDF5 file, so the model is loaded without its head", stacklevel=5)
        return None
    return file


def _options_in(folder: Path) -> list[Path]:
    """`options.json` itself, else whatever is called so in part, as the published files are."""
    exact = folder / "options.json"
    return [exact] if exact.is_file() else sorted(folder.glob("*options*.json"))


def _vocabulary_in(folder: Path) -> Path | None:
    for name in ("vocab.txt", "vocab.txt.gz"):
        if (folder / name).is_file():
            return folder / name
    others = sorted([*folder.glob("vocab*.txt"), *folder.glob("vocab*.txt.gz")])
    return others[0] if len(others) == 1 else None
