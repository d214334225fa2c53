"""Models as ELMoForManyLangs and AllenNLP wrote them, with arrays under the published names, and files as `torch.save` writes them."""

import io
import json
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

SYMBOLS = ["a", "b", "c", "é", "今", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "abc", "今a", "é"]
NETWORK = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 3, "proj_clip": 3, "dim": 11, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 5], [4, 7]],
        "n_highway": 1,
        "word_dim": 4,
        "char_dim": 5,
        "max_characters_per_token": 9,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8},
    "dropout": 0.1,
}
OPTIONS = {
    "lstm": {
        "dim": 11,
        "projection_dim": 6,
        "n_layers": 2,
        "cell_clip": 3,
        "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 3], [2, 5], [4, 7]],
        "n_highway": 1,
        "embedding": {"dim": 5},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}
PREFIX = "text_field_embedder.token_embedder_elmo._elmo."


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (0.4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def lstm_shapes(prefix: str = "") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in [f"{prefix}{direction}_layer_{k}" for direction in ("forward", "backward") for k in (0, 1)]:
        shapes |= {f"{name}.input_linearity.weight": (44, 6), f"{name}.state_linearity.weight": (44, 6)}
        shapes |= {f"{name}.state_linearity.bias": (44,), f"{name}.state_projection.weight": (6, 11)}
    return shapes


def manylangs_shapes(*, words: bool = True, characters: bool = True) -> dict[str, dict[str, tuple[int, ...]]]:
    """Files, keys and shapes by the written rules."""
    tokens: dict[str, tuple[int, ...]] = {}
    if words:
        tokens["word_emb_layer.embedding.weight"] = (len(WORDS), 4)
    if characters:
        tokens["char_emb_layer.embedding.weight"] = (len(SYMBOLS), 5)
        for k, (width, count) in enumerate([(1, 3), (2, 5), (4, 7)]):
            tokens |= {f"convolutions.{k}.weight": (count, 5, width), f"convolutions.{k}.bias": (count,)}
        tokens |= {"highways._layers.0.weight": (30, 15), "highways._layers.0.bias": (30,)}
    tokens |= {"projection.weight": (6, 4 * words + 15 * characters), "projection.bias": (6,)}
    return {"token_embedder.pkl": tokens, "encoder.pkl": lstm_shapes()}


def allennlp_shapes(prefix: str = PREFIX) -> dict[str, tuple[int, ...]]:
    encoder = f"{prefix}_elmo_lstm._token_embedder."
    shapes: dict[str, tuple[int, ...]] = {f"{encoder}_char_embedding_weights": (262, 5)}
    for k, (width, count) in enumerate([(1, 3), (2, 5), (4, 7)]):
        shapes |= {f"{encoder}char_conv_{k}.weight": (count, 5, width), f"{encoder}char_conv_{k}.bias": (count,)}
    shapes |= {f"{encoder}_highways._layers.0.weight": (30, 15), f"{encoder}_highways._layers.0.bias": (30,)}
    shapes |= {f"{encoder}_projection.weight": (6, 15), f"{encoder}_projection.bias": (6,)}
    shapes |= lstm_shapes(f"{prefix}_elmo_lstm._elmo_lstm.")
    shapes |= {
        f"{prefix}scalar_mix_0.{part}": (1,) for part in ("gamma", *[f"scalar_parameters.{k}" for k in (0, 1, 2)])
    }
    return shapes


def allennlp_arrays(prefix: str = PREFIX, seed: int = 0) -> dict[str, np.ndarray]:
    arrays = drawn(allennlp_shapes(prefix), seed)
    arrays[f"{prefix}_elmo_lstm._token_embedder._char_embedding_weights"][0] = 0
    return arrays


def save(file: Path, arrays: Mapping[str, np.ndarray], *, legacy: bool = False) -> None:
    state = OrderedDict((name, torch.from_numpy(np.array(array, order="C"))) for name, array in arrays.items())
    torch.save(state, file, _use_new_zipfile_serialization=not legacy)


def write_manylangs(folder: Path, *, words: bool = True, characters: bool = True, legacy: bool = False) -> Path:
    folder.mkdir(parents=True)
    shapes = manylangs_shapes(words=words, characters=characters)
    network = json.loads(json.dumps(NETWORK))
    network["token_embedder"] |= {"word_dim": 4 * words, "char_dim": 5 * characters}
    (folder / "config.json").write_text(json.dumps({"config_path": "/home/somebody/configs/net.json", "seed": 1}))
    (folder / "net.json").write_text(json.dumps(network))
    write_lexicon(folder / "word.dic", WORDS)
    if characters:
        write_lexicon(folder / "char.dic", SYMBOLS)
    for seed, (file, listed) in enumerate(shapes.items()):
        save(folder / file, drawn(listed, seed), legacy=legacy)
    return folder


def write_lexicon(file: Path, symbols: list[str]) -> None:
    file.write_text("".join(f"{symbol}\t{number}\n" for number, symbol in enumerate(symbols)), encoding="utf-8")


def write_tar(file: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file


def saved(arrays: Mapping[str, np.ndarray], *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    state = OrderedDict((name, torch.from_numpy(np.array(array, order="C"))) for name, array in arrays.items())
    torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


class Claim:
    """Pickled as a tensor that claims whatever it is told to, over a storage that claims the same."""

    def __init__(self, *storage, offset=0, shape=(4,), strides=(1,)) -> None:
        self.storage = ("storage", torch.FloatStorage, *(storage or ("0", "cpu", 4)))
        self.window = (offset, shape, strides)


class _Storage:
    def __init__(self, said) -> None:
        self.said = said


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.said if isinstance(obj, _Storage) else None

    def reducer_override(self, obj):
        if not isinstance(obj, Claim):
            return NotImplemented
        return torch._utils._rebuild_tensor_v2, (_Storage(obj.storage), *obj.window, False, OrderedDict())


def pickled(value: object, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def legacy_file(content: bytes, *storages: tuple[str, int, bytes]) -> bytes:
    """An object's pickle in the old layout, with storages given as (key, count, bytes)."""
    parts = [pickled(0x1950A86A20F9469CFC6C), pickled(1001), pickled({"little_endian": True}), content]
    parts.append(pickled([key for key, _, _ in storages]))
    parts += [count.to_bytes(8, "little", signed=True) + data for _, count, data in storages]
    return b"".join(parts)


def zip_file(content: bytes, storages: Mapping[str, bytes], *, top: str = "archive/", **options) -> bytes:
    """An object's pickle in the new layout; `byteorder` and `compression` as given."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", options.get("compression", zipfile.ZIP_STORED)) as archive:
        archive.writestr(f"{top}data.pkl", content)
        if "byteorder" in options:
            archive.writestr(f"{top}byteorder", options["byteorder"])
        for key, data in storages.items():
            archive.writestr(f"{top}data/{key}", data)
    return buffer.getvalue()
