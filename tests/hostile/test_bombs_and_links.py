"""Files that claim more than they hold, or point to what is not theirs: refused quickly, nothing allocated, nothing followed."""

import gzip
import json
import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hostile.breaking import WORDS, edit_dataset, edit_json, error_of, load_all, run_embed, write_model

from elmofire.text.vocabulary import read_vocabulary

LSTM = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"
MEGABYTE = 1 << 20


def bomb(folder) -> None:
    """A model of whole words whose LSTM claims 64 GB in a file of some kilobytes, by options that agree."""
    cells, width = 1 << 28, 6
    for key, value in {"lstm.dim": cells, "lstm.n_layers": 1}.items():
        edit_json(folder / "options.json", key, value)
    (folder / "weights.hdf5").unlink()
    with h5py.File(folder / "weights.hdf5", "w") as file:
        file["embedding"] = np.ones((len(WORDS), width), dtype=np.float32)
        for d in (0, 1):
            for part, shape in {"W_0": (2 * width, 4 * cells), "B": (4 * cells,), "W_P_0": (cells, width)}.items():
                chunks = tuple(min(size, 1 << 16) for size in shape)
                dataset = file.create_dataset(LSTM.format(d, 0, part), shape, "f4", chunks=chunks, compression="gzip")
                dataset[(slice(0, 1),) * len(shape)] = 1  # one chunk is really there


class TestCompression:
    def test_a_bomb_is_refused_by_the_command_with_little_memory(self, tmp_path):
        folder = write_model(tmp_path, "hdf5", "words")
        whole = run_embed(folder)
        assert whole.code == 0, whole.stderr
        bomb(folder)
        assert (folder / "weights.hdf5").stat().st_size < 100_000
        run = run_embed(folder)
        assert run.code == 2
        assert run.stderr.count("error:") == 1
        for d in (0, 1):
            assert f"weights.hdf5: {LSTM.format(d, 0, 'W_0')} claims 51,539,607,552 bytes" in run.stderr
        assert run.peak < whole.peak + 50 * MEGABYTE

    def test_a_chunk_larger_than_its_dataset_is_refused(self, tmp_path):
        folder = write_model(tmp_path, "hdf5")
        packer = zlib.compressobj(1)
        packed = b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(64)) + packer.flush()
        edit_dataset(folder / "weights.hdf5", "char_embed", lambda array: None)
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            dataset = file.create_dataset(
                "char_embed", (261, 5), "f4", maxshape=(None, None), chunks=(4096, 4096), compression="gzip"
            )
            dataset.id.write_direct_chunk((0, 0), packed)
        assert "weights.hdf5: char_embed claims 67,108,864 bytes" in error_of(folder)

    def test_a_chunk_that_does_not_unpack_is_named(self, tmp_path):
        folder = write_model(tmp_path, "hdf5")
        edit_dataset(folder / "weights.hdf5", "char_embed", lambda array: None)
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            dataset = file.create_dataset("char_embed", (261, 5), "f4", chunks=(261, 5), compression="gzip")
            dataset.id.write_direct_chunk((0, 0), bytes(range(256)))
        assert "weights.hdf5: char_embed cannot be read" in error_of(folder)

    def test_numbers_that_were_never_written_are_refused(self, tmp_path):
        folder = write_model(tmp_path, "hdf5")
        edit_dataset(folder / "weights.hdf5", "char_embed", lambda array: None)
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            file.create_dataset("char_embed", (261, 5), "f4", chunks=(9, 5))
        assert "weights.hdf5: char_embed claims 5,220 bytes, but the file holds 0" in error_of(folder)

    def test_one_dataset_under_very_many_names_is_refused(self, tmp_path):
        folder = write_model(tmp_path, "hdf5", "words")
        cells, layers = 2000, 250
        for key, value in {"lstm.dim": cells, "lstm.n_layers": layers}.items():
            edit_json(folder / "options.json", key, value)
        (folder / "weights.hdf5").unlink()
        with h5py.File(folder / "weights.hdf5", "w") as file:
            file["embedding"] = np.ones((len(WORDS), 6), dtype=np.float32)
            for part, shape in {"W_0": (12, 4 * cells), "B": (4 * cells,), "W_P_0": (cells, 6)}.items():
                file[LSTM.format(0, 0, part)] = np.ones(shape, dtype=np.float32)
                for d, k in [(d, k) for d in (0, 1) for k in range(layers)][1:]:
                    file[LSTM.format(d, k, part)] = file[LSTM.format(0, 0, part)]
        assert "weights.hdf5: the datasets claim 232,000,216 bytes together" in error_of(folder)

    def test_ordinary_compression_is_welcome(self, tmp_path):
        folder = write_model(tmp_path, "hdf5")
        plain = load_all(folder).arrays["forward.0.weight_ih"]
        name = LSTM.format(0, 0, "W_0")
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            kernel = file[name][()]
            del file[name]
            file.create_dataset(name, data=kernel, compression="gzip", shuffle=True, chunks=(5, 7))
        np.testing.assert_array_equal(load_all(folder).arrays["forward.0.weight_ih"], plain)

    @pytest.mark.parametrize("packed", [True, False], ids=["gz", "sparse"])
    def test_a_vocabulary_without_end_is_refused(self, tmp_path, packed):
        path = tmp_path / ("vocab.txt.gz" if packed else "vocab.txt")
        if packed:
            packer = zlib.compressobj(1, wbits=31)
            path.write_bytes(b"".join(packer.compress(b"a\n" * MEGABYTE) for _ in range(65)) + packer.flush())
            assert path.stat().st_size < MEGABYTE
        else:
            path.touch()
            os.truncate(path, 1 << 40)
        with pytest.raises(Exception, match=f"{path}: more than 134,217,728 bytes are too many"):
            read_vocabulary(path)

    @pytest.mark.parametrize("kept", [0, 5, 15, -1])
    def test_a_packed_vocabulary_cut_short_is_named(self, tmp_path, kept):
        folder = write_model(tmp_path, "hdf5", "words")
        (folder / "vocab.txt").unlink()
        packed = gzip.compress("".join(f"{word}\n" for word in WORDS).encode())
        (folder / "vocab.txt.gz").write_bytes(packed)
        load_all(folder)
        (folder / "vocab.txt.gz").write_bytes(packed[:kept])
        assert "vocab.txt.gz: the vocabulary" in error_of(folder)


def outside(tmp_path, name: str) -> Path:
    """A file outside the model's folder that has just the dataset in question."""
    model = write_model(tmp_path / "outside", "hdf5")
    return model / ("softmax_weights.hdf5" if name.startswith("softmax") else "weights.hdf5")


def soft_link(file, name, shape, path) -> None:
    file["elsewhere"] = np.ones(shape, dtype=np.float32)
    file[name] = h5py.SoftLink("/elsewhere")


def dangling_link(file, name, shape, path) -> None:
    file[name] = h5py.SoftLink("/nowhere")


def external_link(file, name, shape, path) -> None:
    file[name] = h5py.ExternalLink(str(path), name)


def relative_link(file, name, shape, path) -> None:
    file[name] = h5py.ExternalLink(f"../outside/model/{path.name}", name)


def external_storage(file, name, shape, path) -> None:
    file.create_dataset(name, shape, "f4", external=[(str(path), 0, 4 * int(np.prod(shape)))])


def virtual_dataset(file, name, shape, path) -> None:
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource(str(path), name, shape=shape)
    file.create_virtual_dataset(name, layout)


WAYS_OUT = [soft_link, dangling_link, external_link, relative_link, external_storage, virtual_dataset]


@pytest.mark.parametrize("name", ["char_embed", "CNN/b_cnn_0", LSTM.format(1, 0, "W_0"), "softmax/W", "softmax/b"])
@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda way: way.__name__.replace("_", " "))
def test_numbers_outside_the_file_are_refused(tmp_path, way, name):
    folder = write_model(tmp_path, "hdf5")
    path = outside(tmp_path, name)
    file = folder / path.name
    shapes = []
    edit_dataset(file, name, lambda array: shapes.append(array.shape))
    with h5py.File(file, "r+") as opened:
        way(opened, name, shapes[0], path)
    said = error_of(folder)
    assert f"{file.name}: {name} is a link" in said or f"{file.name}: {name} keeps its numbers outside" in said
    assert f"{name} is missing" not in said


def test_a_whole_group_that_is_a_link_is_refused(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    path = outside(tmp_path, "char_embed")
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["RNN_1"]
        file["RNN_1"] = h5py.ExternalLink(str(path), "RNN_1")
    with h5py.File(folder / "softmax_weights.hdf5", "r+") as file:
        del file["softmax"]
        file["softmax"] = h5py.ExternalLink(str(path.parent / "softmax_weights.hdf5"), "softmax")
    said = error_of(folder)
    assert "weights.hdf5: RNN_1 is a link" in said
    assert "softmax_weights.hdf5: softmax is a link" in said


def test_groups_within_themselves_do_not_go_round_for_ever(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        for number in range(50):
            file[f"CNN/round{number}"] = file["CNN"]
            file[f"RNN_0/again{number}"] = file["/"]
    assert "weights.hdf5: CNN/round0 is a group within itself" in error_of(folder)


def test_groups_without_end_are_not_followed_down(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        file.create_group("/".join(["down"] * 2000))
    assert "nested too deeply" in error_of(folder)


def test_a_config_can_name_no_file(tmp_path):
    folder = write_model(tmp_path, "native")
    (tmp_path / "secret.txt").write_text("secret")
    described = json.loads((folder / "config.json").read_text())
    for key in ("vocabulary", "weights", "tensors"):
        (folder / "config.json").write_text(json.dumps(described | {key: "../secret.txt"}))
        assert f"unknown key `{key}`" in error_of(folder)
