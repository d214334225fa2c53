"""ELMoForManyLangs: a folder of two dictionaries, two pickled state dicts and a network's config that may well be missing.

A token is spelled in code points of the model's own alphabet, beside a vector for the word itself. The modules are AllenNLP's; the forget
gate's bias holds its 1 already.
"""

import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from elmofire.errors import ModelError, RecipeError
from elmofire.formats.config import PUBLISHED_FILTERS, BilmConfig, EncoderConfig
from elmofire.formats.files import json_object
from elmofire.formats.published.from_torch.pickles import StateDict, read_state_dict
from elmofire.formats.published.from_torch.state_dicts import ModuleArrays, ModuleNames
from elmofire.formats.weights import Source, Weights
from elmofire.recipe import build, named, shown
from elmofire.text.characters import CodePointAlphabet
from elmofire.text.tokenizers import TokenizerInfo
from elmofire.text.vocabulary import BLANK, Vocabulary

CONFIG, ENCODER, TOKEN_EMBEDDER, CLASSIFIER = "config.json", "encoder.pkl", "token_embedder.pkl", "classifier.pkl"
CHARACTERS, WORDS = "char.dic", "word.dic"
FORMAT = "manylangs"

_NAMES = ModuleNames(
    words="word_emb_layer.embedding.weight",
    characters="char_emb_layer.embedding.weight",
    convolution="convolutions.",
    highway="highways._layers.",
    projection="projection.",
)
# (weight, bias) of the two kinds of softmax that are a matrix over the words. The sampled one has an `oov_column` that it never uses.
_HEADS = (("hidden2tag.weight", "hidden2tag.bias"), ("column_emb.weight", "column_bias.weight"))

_LARGEST_TEXT = 128 << 20  # bytes of a dictionary or a config
_LISTED = 8  # wrong lines of a dictionary that an error names
_DAMAGE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError)

# What came with their package: two names for the same network, which is that of the published models.
_PUBLISHED: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {"name": "cnn", "activation": "relu", "filters": PUBLISHED_FILTERS, "n_highway": 2}
    | {"word_dim": 100, "char_dim": 50, "max_characters_per_token": 50},
}
_SHIPPED = ("cnn_0_100_512_4096_sample.json", "cnn_50_100_512_4096_sample.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    name: str
    projection_dim: int
    dim: int
    n_layers: int
    cell_clip: float | None
    proj_clip: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenEmbedder:
    name: str
    max_characters_per_token: int
    word_dim: int | None = 0
    char_dim: int | None = 0
    filters: tuple[tuple[int, int], ...] | None = None
    activation: str | None = None
    n_highway: int | None = None

    def __post_init__(self) -> None:
        if self.char_dim:
            lacking = [key for key in ("filters", "activation", "n_highway") if getattr(self, key) is None]
            if lacking:
                raise RecipeError("; ".join(f"`{key}` is missing" for key in lacking))


class _Network(NamedTuple):
    encoder: _Encoder
    token_embedder: _TokenEmbedder


def recognizes(folder: Path) -> bool:
    return recognizes_names([name for name in (ENCODER, TOKEN_EMBEDDER) if (folder / name).is_file()])


def recognizes_names(names: Sequence[str]) -> bool:
    """Whether files of these names are a model of this family, or at least the better part of one.

    >>> recognizes_names(["config.json", "encoder.pkl", "word.dic"]), recognizes_names(["options.json"])
    (True, False)
    """
    return ENCODER in names or TOKEN_EMBEDDER in names


def read(folder: Path) -> Weights:
    """Read a model folder."""
    names = [file.name for file in folder.iterdir() if file.is_file()]
    names += [file.relative_to(folder).as_posix() for file in folder.glob("*/**/*.json") if file.is_file()]
    weights = _read(
        names,
        lambda name: (folder / name).open("rb"),
        lambda name: read_state_dict(folder / name, str(folder / name)),
        str(folder),
    )
    files = [folder / name for name in sorted(names) if name.endswith((".json", ".dic", ".pkl"))]
    return replace(weights, source=Source(str(folder), FORMAT, tuple(files)))


def read_members(names: list[str], open_member: Callable[[str], BinaryIO], where: str) -> Weights:
    """Read a model out of an archive: its members' names as in a model folder, how to open one, and what errors call the archive.

    Members are read through now, none later; `open_member` sees to it that none gives more bytes than it should. The files of the
    answer's `source` are left to the caller.
    """

    def state_dict(name: str) -> StateDict:
        with open_member(name) as file:
            return read_state_dict(file, f"{where}: {name}")

    return _read(names, open_member, state_dict, where)


def _read(
    names: Sequence[str],
    open_member: Callable[[str], BinaryIO],
    state_dict: Callable[[str], StateDict],
    where: str,
) -> Weights:
    def content(name: str) -> bytes:
        try:
            with open_member(name) as file:
                found = file.read(_LARGEST_TEXT + 1)
        except _DAMAGE as error:
            said = getattr(error, "strerror", None) or error
            raise ModelError(f"{where}: {name}: cannot be read: {said}") from None
        if len(found) > _LARGEST_TEXT:
            raise ModelError(f"{where}: {name}: more than {_LARGEST_TEXT:,} bytes are too many")
        return found

    _demand([CONFIG, ENCODER, TOKEN_EMBEDDER], names, where)
    network = _read_network(names, content, where)
    spelled, known = bool(network.token_embedder.char_dim), bool(network.token_embedder.word_dim)
    _demand([CHARACTERS] * spelled + [WORDS] * known, names, where)
    markers = list(CodePointAlphabet.markers)
    alphabet = CodePointAlphabet(_symbols(content(CHARACTERS), f"{where}: {CHARACTERS}") if spelled else markers)
    vocabulary = Vocabulary(_symbols(content(WORDS), f"{where}: {WORDS}")) if WORDS in names else None
    files = {TOKEN_EMBEDDER: state_dict(TOKEN_EMBEDDER), ENCODER: state_dict(ENCODER)}
    head = _head(state_dict(CLASSIFIER), vocabulary, where) if CLASSIFIER in names else None
    config = _config(network, alphabet, vocabulary, head=head is not None, where=where)

    def locate(name: str) -> tuple[str, str]:
        if head is not None and name.startswith("head."):
            return CLASSIFIER, head.keys[name.endswith("bias")]
        return (TOKEN_EMBEDDER if name.startswith("encoder.") else ENCODER), _NAMES.key(name)

    modules = ModuleArrays(config, files | ({CLASSIFIER: head.state} if head else {}), locate, where)
    problems = [f"{CHARACTERS} lacks {marker}" for marker in alphabet.missing_markers()]
    if known and vocabulary is not None:
        problems += [f"{WORDS} lacks {word}" for word in ("<oov>", "<bos>", "<eos>") if word not in vocabulary]
    problems += modules.mismatches() + modules.without_place(lambda key: key != "oov_column")
    if problems:
        raise ModelError.from_problems(where, problems)
    return Weights(
        config=config,
        arrays=modules.arrays(),
        vocabulary=vocabulary,
        alphabet=alphabet,
        tokenizer=TokenizerInfo(name="plain", language="und", version=1),
        source=Source(where, FORMAT),
    )


def _demand(wanted: list[str], names: Sequence[str], where: str) -> None:
    if lacking := [f"{name} is missing" for name in wanted if name not in names]:
        raise ModelError.from_problems(where, lacking)


def _read_network(names: Sequence[str], content: Callable[[str], bytes], where: str) -> _Network:
    """The network's config: where `config_path` says, else of that name in the folder, else the one that came with their package.

    Most published models hold the path of a machine that nobody has. Only what belongs to the model is looked at.
    """
    said = json_object(content(CONFIG), f"{where}: {CONFIG}").get("config_path")
    if not isinstance(said, str) or not said:
        raise ModelError(f"{where}: {CONFIG}: config_path is {shown(said)}, but should name the network's config")
    path = said.replace("\\", "/").removeprefix("./")
    name = path.rsplit("/", 1)[-1]
    found = next((candidate for candidate in (path, name) if candidate in names and candidate != CONFIG), None)
    if found is None and name not in _SHIPPED:
        raise ModelError(
            f"{where}: {CONFIG}: config_path is {shown(said)}, but there is no {named(name)} in the model",
            hint=f"put the config that the model was trained with beside {CONFIG}",
        )
    table = _PUBLISHED if found is None else json_object(content(found), f"{where}: {found}")
    place = f"{where}: {named(found or name)}"
    sections: list[Any] = []
    problems: list[str] = []
    for key, kind in (("encoder", _Encoder), ("token_embedder", _TokenEmbedder)):
        section = table.get(key)
        try:
            if not isinstance(section, dict):
                raise RecipeError("is missing" if section is None else f"is {shown(section)}, but should be an object")
            used = {field.name for field in fields(kind)}
            sections.append(build(kind, {name: value for name, value in section.items() if name in used}))
        except RecipeError as error:
            problems.append(f"{key}: {error}")
    if problems:
        raise ModelError.from_problems(place, problems)
    network = _Network(*sections)
    if network.encoder.name.lower() != "elmo":
        raise ModelError(
            f"{place}: encoder.name is {shown(network.encoder.name)}, but only 'elmo' is a biLM with layers to mix",
            hint="their encoder 'lstm' gives one vector per token and has no layers in between",
        )
    if network.token_embedder.name.lower() != "cnn":
        raise ModelError(
            f"{place}: token_embedder.name is {shown(network.token_embedder.name)}, but only 'cnn' is known here",
            hint="their token embedder 'lstm' does not run as published, so nothing says what its vectors should be",
        )
    return network


def _config(
    network: _Network, alphabet: CodePointAlphabet, vocabulary: Vocabulary | None, *, head: bool, where: str
) -> BilmConfig:
    encoder, tokens = network
    words = len(vocabulary) if vocabulary is not None else 0
    try:
        return BilmConfig(
            encoder=EncoderConfig(
                width=encoder.projection_dim,
                filters=(tokens.filters or ()) if tokens.char_dim else (),
                alphabet="code points",
                characters=len(alphabet.symbols),
                character_dim=tokens.char_dim or 1,
                max_characters=tokens.max_characters_per_token,
                activation=(tokens.activation or "relu") if tokens.char_dim else "relu",
                highways=(tokens.n_highway or 0) if tokens.char_dim else 0,
                words=words if tokens.word_dim else 0,
                word_dim=tokens.word_dim or 0,
            ),
            layers=encoder.n_layers,
            cells=encoder.dim,
            projection=encoder.projection_dim,
            cell_clip=encoder.cell_clip or None,  # 0 clips nothing there
            projection_clip=encoder.proj_clip or None,
            forget_bias=0.0,
            head=words if head else 0,
        )
    except RecipeError as error:
        raise ModelError(f"{where}: the network's config: {error}") from None


class _Head(NamedTuple):
    state: StateDict
    keys: tuple[str, str]  # of the weight and the bias


def _head(state: StateDict, vocabulary: Vocabulary | None, where: str) -> _Head | None:
    """The softmax over word.dic, if it is a matrix; that over the characters of words has no place in our models."""
    keys = next((keys for keys in _HEADS if keys[0] in state or keys[1] in state), None)
    if keys is not None and vocabulary is not None:
        return _Head(state, keys)
    reason = "is a softmax of a kind that is not known here" if keys is None else f"has no {WORDS} beside it"
    warnings.warn(f"{where}: {CLASSIFIER} {reason}, so the model is read without a head", stacklevel=2)
    return None


def _symbols(content: bytes, where: str) -> list[str]:
    """The symbols of a dictionary by their ids: lines of a symbol, a tab, and its id."""
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{where}:{line}: is not utf-8") from None
    symbols: list[str | None] = [None] * len(lines)
    seen: set[str] = set()
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        parts = line.strip().split("\t")
        # The blank, where stripping the line has taken the symbol.
        symbol, count = (BLANK, *parts) if len(parts) == 1 else (parts[0], parts[-1])
        place = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else len(lines)
        if len(parts) > 2 or place >= len(lines):
            problems.append(
                f"line {number} is {shown(line)}, but should be a symbol, a tab, and an id below {len(lines)}"
            )
        elif symbols[place] is not None:
            problems.append(f"line {number} has the id {place}, which {shown(symbols[place])} has already")
        elif symbol in seen and symbol != BLANK:
            problems.append(f"line {number} has {shown(symbol)}, which stands there already")
        else:
            symbols[place] = symbol
            seen.add(symbol)
        if len(problems) == _LISTED:
            break
    if problems:
        raise ModelError.from_problems(where, problems)
    return [symbol for symbol in symbols if symbol is not None]
