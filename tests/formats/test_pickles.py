"""Files of torch without torch: whatever torch.save writes of a state dict, in either layout, comes back number for number."""

import io
import subprocess
import sys
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from formats.torch_writers import Claim, legacy_file, pickled, zip_file
from models import FIXTURES, needs_shared

from elmofire.formats.published.from_torch.pickles import read_state_dict

LAYOUTS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def read_back(tmp_path, state, **options):
    file = tmp_path / "state.pkl"
    torch.save(state, file, **options)
    return read_state_dict(file, str(file))


def check(found, state):
    assert list(found) == list(state)
    for name, tensor in state.items():
        expected = tensor.detach().float().numpy() if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()
        assert found.shape(name) == tuple(tensor.shape)
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


@LAYOUTS
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_every_type_come_back(tmp_path, legacy, dtype):
    torch.manual_seed(1)
    state = {"a": (torch.randn(3, 5) * 9).to(getattr(torch, dtype)), "b": torch.ones(7).to(getattr(torch, dtype))}
    check(read_back(tmp_path, state, _use_new_zipfile_serialization=not legacy), state)


@LAYOUTS
def test_views_of_one_storage_come_back_as_they_were_seen(tmp_path, legacy):
    whole = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    state = {
        "whole": whole,
        "again": whole,
        "transposed": whole.T,
        "rows": whole[2:4],
        "every third column": whole[:, 1::3],
        "scalar": whole[3, 4],
        "one row": whole[1:2].T,
        "empty": whole[:0],
        "nothing": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(whole[1]),
    }
    check(read_back(tmp_path, state, _use_new_zipfile_serialization=not legacy), state)


@LAYOUTS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_state_dict_of_a_module_comes_back_whatever_the_pickle_protocol(tmp_path, legacy, protocol):
    module = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    state = module.state_dict()
    found = read_back(tmp_path, state, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    check(found, state)


@LAYOUTS
def test_what_is_no_tensor_is_left_out(tmp_path, legacy):
    state = OrderedDict(
        epoch=3, loss=0.5, weight=torch.ones(2), notes=["a", None, True, ("b", 1 << 70)], size=torch.Size([2])
    )
    found = read_back(tmp_path, state, _use_new_zipfile_serialization=not legacy)
    assert list(found) == ["weight"]


@LAYOUTS
def test_an_open_file_is_read_like_a_path_and_may_be_closed(tmp_path, legacy):
    state = {"weight": torch.randn(4, 5)}
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=not legacy)
    file.seek(0)
    found = read_state_dict(file, "the file")
    file.close()
    check(found, state)


def test_numbers_are_looked_at_only_when_asked_for(tmp_path):
    """A damaged compressed storage hurts nobody who does not ask for it."""
    numbers = np.random.default_rng(0).bytes(4000)
    content = pickled(
        {"good": Claim("good", "cpu", 1000, shape=(1000,)), "bad": Claim("bad", "cpu", 1000, shape=(1000,))}
    )
    data = zip_file(content, {"good": numbers, "bad": b"\0" * 4000}, compression=zipfile.ZIP_DEFLATED)
    place = data.index(b"archive/data/bad") + len("archive/data/bad")
    broken = data[:place] + b"\xff" * 8 + data[place + 8 :]
    (tmp_path / "state.pkl").write_bytes(broken)
    found = read_state_dict(tmp_path / "state.pkl", "the file")
    np.testing.assert_array_equal(found["good"], np.frombuffer(numbers, "<f4"))
    with pytest.raises(Exception, match="the file: storage bad cannot be read"):
        found["bad"]


@pytest.mark.parametrize("top", ["", "archive/", "weights.th/"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("order", [None, "little", "big"])
def test_zips_may_be_packed_again_under_any_folder_in_either_byte_order(tmp_path, top, compression, order):
    numbers = np.arange(4, dtype=">f4" if order == "big" else "<f4")
    options = {} if order is None else {"byteorder": order}
    data = zip_file(pickled({"a": Claim()}), {"0": numbers.tobytes()}, top=top, compression=compression, **options)
    (tmp_path / "state.pkl").write_bytes(data)
    np.testing.assert_array_equal(read_state_dict(tmp_path / "state.pkl", "the file")["a"], [0, 1, 2, 3])


def test_the_old_layout_names_parts_of_storages(tmp_path):
    part = Claim("7", "cuda:0", 10, ("part", 4, 5), offset=1, shape=(2, 2), strides=(2, 1))
    data = legacy_file(pickled({"part": part}), ("7", 10, np.arange(10, dtype="<f4").tobytes()))
    (tmp_path / "state.pkl").write_bytes(data)
    np.testing.assert_array_equal(read_state_dict(tmp_path / "state.pkl", "the file")["part"], [[5, 6], [7, 8]])


def test_an_ordered_dict_of_python_2_is_a_dict(tmp_path):
    """There, an OrderedDict was pickled as a list of pairs, and names were byte strings."""
    ones = pickled(Claim())[2:-1]  # without protocol and stop
    content = b"\x80\x02ccollections\nOrderedDict\n]](U\x05theta" + ones + b"ea\x85R}U\x01kK\x01sb."
    data = legacy_file(content, ("0", 4, np.ones(4, "<f4").tobytes()))
    (tmp_path / "state.pkl").write_bytes(data)
    np.testing.assert_array_equal(read_state_dict(tmp_path / "state.pkl", "the file")["theta"], [1, 1, 1, 1])


@needs_shared
@pytest.mark.parametrize("file", ["word_char/encoder.pkl", "char_only/encoder.pkl", "char_only/token_embedder.pkl"])
def test_published_files_hold_what_torch_finds_in_them(file):
    path = FIXTURES / "efml_toy" / file
    check(read_state_dict(path, file), torch.load(path, weights_only=True))


def test_no_torch_is_needed(tmp_path):
    torch.save({"weight": torch.arange(3.0)}, tmp_path / "state.pkl")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from elmofire.formats.published.from_torch.pickles import read_state_dict\n"
        f"print(read_state_dict(Path({str(tmp_path / 'state.pkl')!r}), 'file')['weight'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[0.0, 1.0, 2.0]\n"
