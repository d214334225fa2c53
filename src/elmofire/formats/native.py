"""The native format, version 1: `config.json`, `model.safetensors` and, for models that know words, `vocab.txt`."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmofire.errors import InputError, MissingExtra, ModelError, RecipeError
from elmofire.formats.config import BilmConfig, EncoderConfig, tensor_shapes
from elmofire.formats.files import folder_written_aside, read_json_object
from elmofire.formats.tensors import MappedTensors, float32_to_bfloat16, write_tensors
from elmofire.formats.weights import Array, FileArrays, LearnedMix, Source, Weights
from elmofire.recipe import build, named, shown
from elmofire.text.characters import ByteAlphabet, CodePointAlphabet
from elmofire.text.tokenizers import TokenizerInfo, load_tokenizer
from elmofire.text.vocabulary import BLANK, Vocabulary, read_vocabulary, write_vocabulary

CONFIG, TENSORS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.txt", "README.md"
CHARACTERS = "characters.txt"
FORMAT = 1
STORAGES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "I8"}
_RANGES = {"F16": 65504.0, "BF16": (2 - 2**-7) * 2.0**127}


def recognizes(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / TENSORS).is_file()


def read(folder: Path) -> Weights:
    """Map a model folder; nothing is copied until an array is asked for."""
    described = _read_config(folder / CONFIG)
    tensors = MappedTensors(folder / TENSORS)
    vocabulary_file = folder / VOCABULARY
    vocabulary = read_vocabulary(vocabulary_file) if vocabulary_file.is_file() else None
    _check(folder, described.model, tensors, vocabulary)
    in_bytes = described.model.encoder.alphabet == "bytes"
    if vocabulary is not None and not in_bytes and "" in vocabulary:
        vocabulary = Vocabulary(word or BLANK for word in vocabulary.words)
    alphabet = ByteAlphabet() if in_bytes else _read_alphabet(folder / CHARACTERS, described.model.encoder.characters)

    def read_array(name: str) -> Array:
        array = tensors.float32(name)
        if tensors.dtype(name) == "I8":
            scale = tensors.float32(f"{name}.scale")
            array = array * scale.reshape(-1, *[1] * (array.ndim - 1))
        return array

    files = [folder / CONFIG, folder / TENSORS, *([vocabulary_file] if vocabulary else [])]
    files += [] if in_bytes else [folder / CHARACTERS]
    return Weights(
        config=described.model,
        arrays=FileArrays(described.model, read_array, lambda name: f"{folder / TENSORS}: {name}"),
        vocabulary=vocabulary,
        alphabet=alphabet,
        mixes=described.mixes,
        tokenizer=described.tokenizer,
        training=described.training,
        source=Source(str(folder), "native", tuple(files)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """What stands in `config.json`."""

    model_type: str
    format: int
    model: BilmConfig
    tokenizer: TokenizerInfo
    training: dict = field(default_factory=dict)
    mixes: tuple[LearnedMix, ...] = ()


def _read_alphabet(path: Path, rows: int) -> CodePointAlphabet:
    """One symbol a line; those that would break a line are written as JSON strings."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        alphabet = CodePointAlphabet(
            [json.loads(line) if line.startswith('"') and len(line) > 1 else line for line in lines]
        )
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise ModelError(f"{path}: is not a list of characters, one a line") from None
    if len(alphabet.symbols) != rows:
        raise ModelError(f"{path}: has {len(alphabet.symbols)} lines, but encoder.characters has {rows} rows")
    if lacking := alphabet.missing_markers():
        raise ModelError(f"{path}: lacks {', '.join(lacking)}")
    return alphabet


def _write_alphabet(path: Path, alphabet: CodePointAlphabet) -> None:
    lines = [
        json.dumps(symbol) if set(symbol) & set('\n\r"') or not _is_text(symbol) else symbol
        for symbol in alphabet.symbols
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")


def _is_text(symbol: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in symbol)


def _read_config(path: Path) -> _Described:
    described = read_json_object(path)
    if described.get("model_type") != "elmofire":
        raise ModelError(f"{path}: model_type is {shown(described.get('model_type'))}, but should be 'elmofire'")
    version = described.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelError(f"{path}: format is {shown(version)}, but should be a whole number such as {FORMAT}")
    if version > FORMAT:
        raise ModelError(
            f"{path}: format {shown(version)} is newer than {FORMAT}, the newest known here", hint="upgrade elmofire"
        )
    try:
        built = build(_Described, described)
    except RecipeError as error:
        raise ModelError(f"{path}: {error}") from None
    left_out = [f"`model.{key}` is missing" for key in _WRITTEN if not _says(described["model"], key)]
    if left_out:
        raise ModelError.from_problems(str(path), left_out)
    try:
        load_tokenizer(built.tokenizer)
    except InputError as error:
        raise ModelError(f"{path}: tokenizer: {error}") from None
    except MissingExtra:
        pass  # text that is tokenized already needs none
    return built


# What every file of format 1 says. Where a key that came later is missing, its default has to mean "as before".
_WRITTEN = (
    *("encoder", "encoder.width", "encoder.filters", "encoder.alphabet", "encoder.characters", "encoder.character_dim"),
    *("encoder.max_characters", "encoder.activation", "encoder.highways", "encoder.projection", "encoder.words"),
    *("encoder.word_dim", "directions", "layers", "cells", "projection", "lstm_projection"),
    *("cell_clip", "projection_clip", "skip_connections", "forget_bias", "head"),
)


def _says(table: dict[str, Any], key: str) -> bool:
    first, dot, rest = key.partition(".")
    return first in table and (not dot or _says(table[first], rest))


def _check(folder: Path, config: BilmConfig, tensors: MappedTensors, vocabulary: Vocabulary | None) -> None:
    problems: list[str] = []
    shapes = tensor_shapes(config)
    expected = dict(shapes)
    for name, shape in shapes.items():
        if name in tensors and tensors.dtype(name) == "I8":
            expected[f"{name}.scale"] = shape[:1]
    for name, shape in expected.items():
        if name not in tensors:
            problems.append(f"{name} is missing")
        elif tensors.shape(name) != shape:
            problems.append(f"{name} has the shape {tensors.shape(name)}, but should have {shape}")
        elif tensors.dtype(name) not in (known := STORAGES.values() if name in shapes else ["F32"]):
            problems.append(f"{name} is stored as {tensors.dtype(name)}, but should be one of {', '.join(known)}")
    problems += [
        f"{named(name)} has no place in the model that {CONFIG} describes"
        for name in tensors.names()
        if name not in expected
    ]
    for part, rows in (("encoder.words", config.encoder.words), ("head.weight", config.head)):
        if vocabulary is not None and rows not in (0, len(vocabulary)):
            problems.append(f"{VOCABULARY} has {len(vocabulary)} words, but {part} has {rows} rows")
    if config.encoder.words and vocabulary is None:
        problems.append(f"{VOCABULARY} is missing, and this model takes whole words")
    if problems:
        raise ModelError.from_problems(f"{folder / CONFIG} and {TENSORS}", problems)


def write(weights: Weights, folder: Path, *, storage: str = "float32", card: str | None = None) -> None:
    """Write a model folder. `storage` is float32 (exact), bfloat16, float16, or int8 with one scale a row."""
    if storage not in STORAGES:
        raise ModelError(f"storage is {storage!r}, but should be one of {', '.join(STORAGES)}")
    described = {
        "model_type": "elmofire",
        "format": FORMAT,
        "model": _model_table(weights.config),
        "tokenizer": asdict(weights.tokenizer),
        "training": dict(weights.training),
        "mixes": [asdict(mix) for mix in weights.mixes],
    }
    with folder_written_aside(folder, replaces=_is_ours) as aside:
        tensors, read_stored = _stored(weights, storage)
        write_tensors(aside / TENSORS, tensors, lambda name: [read_stored(name)], metadata={"format": "pt"})
        (aside / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        if weights.vocabulary is not None:
            write_vocabulary(aside / VOCABULARY, weights.vocabulary)
        if isinstance(weights.alphabet, CodePointAlphabet):
            _write_alphabet(aside / CHARACTERS, weights.alphabet)
        (aside / CARD).write_text(card or _card(weights, storage), encoding="utf-8")


def _model_table(config: BilmConfig) -> dict[str, Any]:
    """Keys that came later are written only where they do not mean "as before": other files still serve older versions."""
    table, before = asdict(config), asdict(EncoderConfig())
    encoder = table["encoder"].items()
    table["encoder"] = {key: value for key, value in encoder if f"encoder.{key}" in _WRITTEN or value != before[key]}
    return table


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one that `write` has written, so that nothing else is lost with it."""
    only_ours = {file.name for file in folder.iterdir()} <= {CONFIG, TENSORS, VOCABULARY, CHARACTERS, CARD}
    return (
        only_ours and (folder / CONFIG).is_file() and read_json_object(folder / CONFIG).get("model_type") == "elmofire"
    )


def _stored(weights: Weights, storage: str) -> tuple[dict[str, tuple[str, tuple[int, ...]]], Callable[[str], NDArray]]:
    """What the file will hold, and how to get each tensor. One-dimensional arrays stay float32: they are small."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    scales: dict[str, Array] = {}
    for name, shape in tensor_shapes(weights.config).items():
        tensors[name] = (STORAGES[storage] if len(shape) > 1 else "F32", shape)
        if storage == "int8" and len(shape) > 1:
            tensors[f"{name}.scale"] = ("F32", shape[:1])

    def read_stored(name: str) -> NDArray:
        if name in scales:
            return scales.pop(name)
        array = weights.arrays[name]
        dtype = tensors[name][0]
        if dtype in _RANGES and np.abs(array).max() > _RANGES[dtype]:
            raise ModelError(f"{name}: holds values beyond the range of {storage}", hint="store it as float32")
        if dtype == "BF16":
            return float32_to_bfloat16(array)
        if dtype == "I8":
            quantized, scales[f"{name}.scale"] = quantize_rows(array)
            return quantized
        return array

    return tensors, read_stored


def quantize_rows(array: Array) -> tuple[NDArray[np.int8], Array]:
    """Each row (first axis) as int8 times a scale of its own; a row of zeros, or too small for a scale, has the scale 1."""
    largest = np.abs(array).reshape(len(array), -1).max(axis=1)
    scale = np.where(largest > 1e-35, largest / 127, 1).astype(np.float32)
    return np.rint(array / scale.reshape(-1, *[1] * (array.ndim - 1))).astype(np.int8), scale


def storage_of(weights: Weights) -> str:
    """How a model's numbers are stored where it came from, the coarsest of them; other formats than this one have float32 alone."""
    for file in weights.source.files if weights.source else ():
        if file.name == TENSORS:
            tensors = MappedTensors(file)
            stored = {tensors.dtype(name) for name in tensors.names()}
            return next(name for name, dtype in reversed(STORAGES.items()) if dtype in stored)
    return "float32"


def card_of(weights: Weights) -> str | None:
    """What the folder that a model came from says of it, if it is one of these."""
    for file in weights.source.files if weights.source else ():
        if file.name == TENSORS and (file.parent / CARD).is_file():
            return (file.parent / CARD).read_text(encoding="utf-8", errors="replace")
    return None


def _card(weights: Weights, storage: str) -> str:
    config = weights.config
    return (
        "---\nlibrary_name: elmofire\ntags: [elmo, contextual-embeddings]\n---\n\n# An ELMo biLM in elmofire's format\n\n"
        f"{config.parameters:,} parameters, {config.layers} LSTM layers of {config.cells} cells, vectors of {config.width} "
        f"numbers, stored as {storage}.\n\n"
        '```python\nfrom elmofire import Embedder\n\nelmo = Embedder.load("this folder")\n```\n'
    )
