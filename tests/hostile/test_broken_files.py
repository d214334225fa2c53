"""Files cut short, scribbled over, or not what their names say: one error that names the file."""

import json
import os

import numpy as np
import pytest
from hostile.breaking import error_of, load_all, write_model

from elmofire import ElmofireError, load_weights
from elmofire.formats.published.datasets import DatasetFile
from elmofire.formats.tensors import MappedTensors

JSON = {"hdf5": "options.json", "native": "config.json"}
FILES = [
    ("hdf5", "weights.hdf5"),
    ("hdf5", "softmax_weights.hdf5"),
    ("hdf5", "options.json"),
    ("native", "model.safetensors"),
    ("native", "config.json"),
]
files = pytest.mark.parametrize(("format", "name"), FILES, ids=[name for _, name in FILES])
json_files = pytest.mark.parametrize("format", list(JSON))


@files
@pytest.mark.parametrize("kept", [0, 1, 7, 8, 100, 0.5, 0.99, -2], ids=str)
def test_a_file_cut_short_is_named(tmp_path, format, name, kept):
    file = write_model(tmp_path, format) / name
    content = file.read_bytes()
    length = kept if isinstance(kept, int) else int(kept * len(content))
    file.write_bytes(content[:length])
    assert str(file) in error_of(file.parent)


@files
def test_random_bytes_are_no_file_of_ours(tmp_path, format, name):
    file = write_model(tmp_path, format) / name
    file.write_bytes(np.random.default_rng(1).bytes(5000))
    assert str(file) in error_of(file.parent)


@files
def test_a_file_of_zeros_is_no_file_of_ours(tmp_path, format, name):
    file = write_model(tmp_path, format) / name
    file.write_bytes(bytes(file.stat().st_size))
    assert str(file) in error_of(file.parent)


@files
def test_a_folder_in_the_place_of_a_file_is_an_error(tmp_path, format, name):
    file = write_model(tmp_path, format) / name
    file.unlink()
    file.mkdir()
    assert name in error_of(file.parent)


@pytest.mark.parametrize("format", ["hdf5", "native"])
def test_no_scribbling_gets_past_the_errors(tmp_path, format):
    """Damage among the numbers may go unseen; damage anywhere else is an error of ours, never another exception."""
    file = write_model(tmp_path, format) / {"hdf5": "weights.hdf5", "native": "model.safetensors"}[format]
    whole = file.read_bytes()
    rng = np.random.default_rng(2018)
    refused = []
    for _ in range(150):
        damaged = np.frombuffer(whole, dtype=np.uint8).copy()
        places = rng.integers(0, 8000, size=4) % len(damaged)
        damaged[places] = rng.integers(0, 256, size=4)
        file.unlink()  # a new file each time: HDF5 knows open ones by their inode
        file.write_bytes(damaged.tobytes())
        try:
            load_all(file.parent)
        except ElmofireError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert all(file.name in said for said in refused)


class TestJson:
    @json_files
    @pytest.mark.parametrize("content", ["[]", "3", '"x"', "null", "true", "{", "{} {}", "{'a': 1}", "\x00", "nan"])
    def test_what_is_no_object_is_an_error(self, tmp_path, format, content):
        file = write_model(tmp_path, format) / JSON[format]
        file.write_text(content)
        assert str(file) in error_of(file.parent)

    @json_files
    def test_text_that_is_not_utf8_is_an_error(self, tmp_path, format):
        file = write_model(tmp_path, format) / JSON[format]
        file.write_bytes(file.read_text().encode("utf-16"))
        assert f"{file}: is not utf-8" in error_of(file.parent)

    @pytest.mark.parametrize("depth", [500, 900, 960, 980, 990, 1000, 100_000])
    @pytest.mark.parametrize(
        ("format", "key"), [("hdf5", "lstm"), ("hdf5", "char_cnn"), ("native", "model"), ("native", "x")], ids=str
    )
    def test_deep_nesting_is_an_error(self, tmp_path, format, key, depth):
        file = write_model(tmp_path, format) / JSON[format]
        start = file.read_text().rstrip().removesuffix("}")
        file.write_text(f'{start}, "{key}": {"[" * depth}{"]" * depth}}}')
        said = error_of(file.parent)
        assert str(file) in said
        assert len(said) < 1000

    @json_files
    def test_a_number_of_a_million_digits_is_an_error(self, tmp_path, format):
        file = write_model(tmp_path, format) / JSON[format]
        file.write_text(f'{{"x": 1{"0" * 1_000_000}}}')
        assert str(file) in error_of(file.parent)

    @json_files
    def test_a_file_of_a_hundred_megabytes_is_not_even_read(self, tmp_path, format):
        file = write_model(tmp_path, format) / JSON[format]
        os.truncate(file, 100 << 20)  # sparse: takes no room
        assert f"{file}: 104,857,600 bytes are too many" in error_of(file.parent)

    @json_files
    def test_a_byte_order_mark_is_no_mistake(self, tmp_path, format):
        file = write_model(tmp_path, format) / JSON[format]
        file.write_text(file.read_text(), encoding="utf-8-sig")
        load_all(file.parent)


def safetensors_file(path, header, data=b"") -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def entry(first: int, last: int, shape: list[int], dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


class TestSafetensors:
    @pytest.mark.parametrize(
        ("header", "data"),
        [
            pytest.param({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12, id="overlapping"),
            pytest.param({"a": entry(0, 80, [20])}, 8, id="past the end"),
            pytest.param({"a": entry(8, 0, [2])}, 8, id="backwards"),
            pytest.param({"a": entry(-8, 0, [2])}, 8, id="before the start"),
            pytest.param({"a": entry(8, 16, [2])}, 16, id="a gap at the start"),
            pytest.param({"a": entry(0, 8, [2])}, 16, id="a gap at the end"),
            pytest.param({"a": entry(0, 8, [3])}, 8, id="another size than its shape"),
            pytest.param({"a": entry(0, 8, [2**62, 4])}, 8, id="a shape beyond 64 bits"),
            pytest.param({"a": entry(0, 8, [-2])}, 8, id="a negative shape"),
            pytest.param({"a": entry(0, 8, [2], "F31")}, 8, id="an unknown type"),
            pytest.param({"a": {"dtype": "F32"}}, 8, id="an entry without place"),
            pytest.param({"a": 3}, 8, id="an entry that is no object"),
            pytest.param(b"[" * 100_000, 0, id="deep nesting"),
            pytest.param(
                b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "x": %s}}' % (b"1" * 5000),
                8,
                id="digits",
            ),
            pytest.param(b"\xff\xfe{}", 0, id="not utf-8"),
        ],
    )
    def test_a_header_that_lies_is_an_error(self, tmp_path, header, data):
        file = write_model(tmp_path, "native") / "model.safetensors"
        safetensors_file(file, header, bytes(data))
        assert f"{file}: is not a whole safetensors file" in error_of(file.parent)

    @pytest.mark.parametrize("size", [1 << 20, 1 << 27, 1 << 62, (1 << 64) - 1])
    def test_a_header_larger_than_the_file_is_an_error(self, tmp_path, size):
        file = write_model(tmp_path, "native") / "model.safetensors"
        file.write_bytes(size.to_bytes(8, "little") + b"{}")
        assert f"{file}: is not a whole safetensors file" in error_of(file.parent)

    def test_tensors_that_are_not_aligned_are_read_all_the_same(self, tmp_path):
        header = json.dumps({"a": entry(0, 3, [3], "I8"), "b": entry(3, 11, [2])}).encode()
        header += b" " * (1 - len(header) % 2)  # so that b is aligned in no case
        safetensors_file(tmp_path / "x.safetensors", header, bytes(3) + np.array([1.5, -2], dtype="<f4").tobytes())
        read = MappedTensors(tmp_path / "x.safetensors").float32("b")
        assert read.flags.aligned
        assert read.tolist() == [1.5, -2]


@pytest.mark.parametrize("reader", [DatasetFile, MappedTensors])
def test_a_file_that_is_not_there_is_an_error(tmp_path, reader):
    with pytest.raises(ElmofireError, match="nowhere"):
        reader(tmp_path / "nowhere")


def test_a_pair_names_the_file_that_is_not_there(tmp_path):
    folder = write_model(tmp_path, "hdf5")
    for pair in [("x.json", "weights.hdf5"), ("options.json", "x.hdf5")]:
        with pytest.raises(ElmofireError, match=r"x\.\w+: no such file"):
            load_weights((folder / pair[0], folder / pair[1]))
