"""Pickles, tars and zips from a stranger: nothing of theirs runs, nothing is written, and each is one error that names the file."""

import builtins
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import time
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from formats.torch_writers import (
    OPTIONS,
    PREFIX,
    Claim,
    allennlp_arrays,
    allennlp_shapes,
    drawn,
    legacy_file,
    manylangs_shapes,
    pickled,
    save,
    saved,
    write_manylangs,
    write_tar,
    zip_file,
)
from hostile.breaking import run_embed
from hostile.test_broken_models import WAYS

from elmofire import ModelError, load_weights
from elmofire.formats.published.from_torch.pickles import read_state_dict

FOUR = np.arange(4, dtype="<f4").tobytes()


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def in_both_layouts(content: bytes) -> dict[str, bytes]:
    return {"legacy": legacy_file(content, ("0", 4, FOUR)), "zip": zip_file(content, {"0": FOUR})}


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def error_of(tmp_path, data: bytes) -> str:
    """What is said about a file, in one error, quickly and without much memory."""
    file = tmp_path / "stranger.pkl"
    file.write_bytes(data)
    start = time.monotonic()
    with little_memory(), pytest.raises(ModelError) as caught:
        dict(read_state_dict(file, str(file)))
    assert time.monotonic() - start < 30
    said = str(caught.value)
    assert "stranger.pkl" in said
    assert len(said) < 2000
    return said


@pytest.mark.parametrize("layout", ["legacy", "zip"])
class TestCode:
    @pytest.mark.parametrize("protocol", [2, 4])
    @pytest.mark.parametrize(
        ("function", "name"),
        [(os.system, "posix.system"), (builtins.eval, "eval"), (builtins.exec, "exec"), (builtins.getattr, "getattr")],
    )
    def test_a_function_is_named_and_not_run(self, tmp_path, layout, protocol, function, name):
        evidence = tmp_path / "evidence"
        argument = f"touch {evidence}" if function is os.system else f"open({str(evidence)!r}, 'w')"
        content = pickled({"a": Claim(), "b": Call(function, argument)}, protocol)
        said = error_of(tmp_path, in_both_layouts(content)[layout])
        assert f"{name}, which is not among those of weights" in said
        assert not evidence.exists()

    @pytest.mark.parametrize(
        "name",
        [
            "numpy.core.multiarray _reconstruct",
            "torch._utils _rebuild_tensor_v2.__globals__",
            "torch.storage _load_from_bytes",
            "torch.serialization load",
            "torch load",
            "collections OrderedDict.fromkeys",
            "builtins dict",
            "torch.nn.modules.linear Linear",
        ],
    )
    def test_what_only_looks_like_the_right_module_is_refused(self, tmp_path, layout, name):
        module, attribute = name.split(" ")
        content = b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b")R."
        assert f"{module}.{attribute}" in error_of(tmp_path, in_both_layouts(content)[layout])

    @pytest.mark.parametrize(
        "content",
        [
            pickle.dumps(Call(pickle.loads, b"x"), 0),  # protocol 0
            b"\x80\x02(S'echo'\nios\nsystem\n.",  # INST
            b"\x80\x02ctorch\nFloatStorage\n)\x81.",  # NEWOBJ
            b"\x80\x02\x82\x01.",  # EXT1
            b"\x80\x02U\x04echoctorch\nFloatStorage\n)R.",  # a storage class called
            b"\x80\x02K\x01)R.",  # a number called
            b"\x80\x02ccollections\nOrderedDict\n}\x92.",  # NEWOBJ_EX
            b"\x80\x02ccollections\nOrderedDict\n}b.",  # attributes for a function
            b"\x80\x02]}b.",  # attributes for a list
        ],
    )
    def test_other_ways_to_a_call_are_refused(self, tmp_path, layout, content):
        error_of(tmp_path, in_both_layouts(content)[layout])

    def test_a_name_made_to_look_like_an_error_stays_on_its_line(self, tmp_path, layout):
        content = b"\x80\x04\x8c\x02os\x8c\x14x\nerror: all is lost\x93."
        assert "\nerror:" not in error_of(tmp_path, in_both_layouts(content)[layout])


def laughs(kind: bytes, depth: int) -> bytes:
    """A list or tuple of ten times the one before, and so on."""
    opener, closer = {b"l": (b"](", b"e"), b"t": (b"(", b"t")}[kind]
    content = b"\x80\x02]q\x00"
    for k in range(depth):
        content += opener + b"h" + bytes([k]) + (b"h" + bytes([k])) * 9 + closer + b"q" + bytes([k + 1])
    return content


BOMBS = {
    "billion laughs": laughs(b"l", 100) + b".",
    "billion laughs of tuples": laughs(b"t", 100) + b".",
    "billion laughs as a key": b"\x80\x02}" + laughs(b"t", 100)[2:] + b"K\x01s.",
    "a memo of four billion": b"\x80\x02}r\xff\xff\xff\xff.",
    "a string of four gigabytes": b"\x80\x02X\xff\xff\xff\xffabc.",
    "a negative string": b"\x80\x02T\xff\xff\xff\xffabc.",
    "bytes of an exabyte": b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little") + b"abc.",
    "a bytearray of an exabyte": b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b"abc.",
    "a long of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
    "lists deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "tuples deep": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "tuples deep as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",
    "many marks": b"\x80\x02" + b"(" * 100_000 + b".",
    "a dict in itself": b"\x80\x02}q\x00U\x01ah\x00s.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "no stop": b"\x80\x02" + b"N" * 100_000,
    "an empty stack": b"\x80\x02.",
    "pops below a mark": b"\x80\x02N(\x85.",
    "a memo that was never written": b"\x80\x02h\x07.",
    "attributes of nothing": b"\x80\x02b.",
    "no utf-8": b"\x80\x02X\x01\0\0\0\xff.",
}


@pytest.mark.parametrize("layout", ["legacy", "zip"])
@pytest.mark.parametrize("bomb", list(BOMBS))
def test_a_bomb_is_one_error(tmp_path, layout, bomb):
    error_of(tmp_path, in_both_layouts(BOMBS[bomb])[layout])


HUGE = 1 << 61
CLAIMS = {
    "too many rows": Claim(shape=(5,)),
    "beyond the end": Claim(offset=1),
    "a huge offset": Claim(offset=HUGE),
    "a negative offset": Claim(offset=-1),
    "a negative size": Claim(shape=(-1,)),
    "negative sizes": Claim(shape=(-2, -2), strides=(1, 1)),
    "a negative stride": Claim(offset=3, strides=(-1,)),
    "a huge size": Claim(shape=(HUGE, HUGE), strides=(1, 1)),
    "a huge stride": Claim(shape=(2,), strides=(HUGE,)),
    "sizes that overflow to nothing": Claim(shape=(1 << 32, 1 << 32), strides=(1, 1)),
    "an expanded tensor": Claim(shape=(1_000_000,), strides=(0,)),
    "a small expanded tensor": Claim(shape=(2,), strides=(0,)),
    "overlapping rows": Claim(shape=(3, 2), strides=(1, 1)),
    "fewer strides": Claim(shape=(2, 2), strides=(2,)),
    "more strides": Claim(shape=(2,), strides=(1, 1)),
    "a hundred axes": Claim(shape=(1,) * 100, strides=(1,) * 100),
    "a shape of floats": Claim(shape=(2.0,)),
    "a shape of bools": Claim(shape=(True,)),
    "a shape that is a list": Claim(shape=[4]),
    "a huge storage": Claim("0", "cpu", HUGE, shape=(HUGE,)),
    "a negative storage": Claim("0", "cpu", -4),
    "a storage that is not there": Claim("1", "cpu", 4),
    "a storage that is a path": Claim("../data.pkl", "cpu", 4),
    "a storage called by a number": Claim(0, "cpu", 4),
    "a part beyond its storage": Claim("0", "cpu", 4, ("v", 2, 4)),
    "a negative part": Claim("0", "cpu", 4, ("v", -1, 4)),
    "a part of nothing": Claim("0", "cpu", 4, ("v", 1)),
    "a longer claim": Claim("0", "cpu", 4, None, None, None),
}


@pytest.mark.parametrize("layout", ["legacy", "zip"])
@pytest.mark.parametrize("claim", list(CLAIMS))
def test_a_tensor_that_is_not_in_its_storage_is_one_error(tmp_path, layout, claim):
    error_of(tmp_path, in_both_layouts(pickled({"a": CLAIMS[claim]}))[layout])


@pytest.mark.parametrize("layout", ["legacy", "zip"])
@pytest.mark.parametrize("content", [None, 3, [1, 2], {}, {"epoch": 3}, {"model": {"a": Claim()}}, Claim()])
def test_what_is_no_state_dict_is_one_error(tmp_path, layout, content):
    assert "tensors" in error_of(tmp_path, in_both_layouts(pickled(content))[layout])


class TestLegacyLayout:
    @pytest.mark.parametrize("count", [-1, 3, 5, 1 << 40, (1 << 63) - 1])
    def test_a_count_that_is_wrong_is_one_error(self, tmp_path, count):
        error_of(tmp_path, legacy_file(pickled({"a": Claim()}), ("0", count, FOUR)))

    def test_a_storage_that_is_not_listed_is_one_error(self, tmp_path):
        error_of(tmp_path, legacy_file(pickled({"a": Claim()})))
        error_of(tmp_path, legacy_file(pickled({"a": Claim()}), ("0", 4, FOUR), ("0", 4, FOUR)))

    def test_another_magic_number_or_version_is_one_error(self, tmp_path):
        assert "is not a file that torch.save wrote" in error_of(tmp_path, pickled(7) * 5)
        assert "version 1002" in error_of(tmp_path, pickled(0x1950A86A20F9469CFC6C) + pickled(1002) + pickled({}) * 3)


class TestZipLayout:
    def test_a_bomb_of_zeros_is_refused_by_its_claim(self, tmp_path):
        storage = {"0": b"\0" * (64 << 20)}
        claim = Claim("0", "cpu", 16 << 20, shape=(16 << 20,))
        data = zip_file(pickled({"a": claim}), storage, compression=zipfile.ZIP_DEFLATED)
        assert len(data) < 1 << 20
        assert "claim" in error_of(tmp_path, data)

    def test_members_that_claim_less_than_they_unpack_to_are_cut_there(self, tmp_path):
        data = zip_file(
            pickled({"a": Claim("0", "cpu", 1 << 20, shape=(1 << 20,))}), {"0": b"\0" * (4 << 20)}, compression=8
        )
        data = data.replace(struct.pack("<I", 4 << 20), struct.pack("<I", 64))
        error_of(tmp_path, data)

    def test_sizes_beyond_the_file_are_one_error(self, tmp_path):
        data = zip_file(pickled({"a": Claim()}), {"0": FOUR})
        error_of(tmp_path, data.replace(struct.pack("<II", 16, 16), struct.pack("<II", 1 << 23, 1 << 23)))

    def test_several_pickles_or_none_are_one_error(self, tmp_path):
        buffer = io.BytesIO(zip_file(pickled({"a": Claim()}), {"0": FOUR}))
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr("other/data.pkl", pickled({}))
        assert "has one data.pkl, but this one has 2" in error_of(tmp_path, buffer.getvalue())
        assert "has 0" in error_of(tmp_path, zip_file(b"", {}, top="a/b/"))

    def test_a_byte_order_that_nobody_has_is_one_error(self, tmp_path):
        assert "byteorder" in error_of(tmp_path, zip_file(pickled({"a": Claim()}), {"0": FOUR}, byteorder="middle"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_every_truncation_is_one_error(tmp_path, legacy):
    data = saved({"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(3, np.float32)}, legacy=legacy)
    file = tmp_path / "stranger.pkl"
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"stranger.pkl"):
            dict(read_state_dict(file, str(file)))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_every_flipped_byte_is_numbers_or_one_error(tmp_path, legacy):
    data = saved({"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(3, np.float32)}, legacy=legacy)
    file = tmp_path / "stranger.pkl"
    errors = 0
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            dict(read_state_dict(file, str(file)))
        except ModelError as error:
            assert "stranger.pkl" in str(error)  # noqa: PT017
            errors += 1
    assert errors > 100


@pytest.mark.parametrize(
    "content",
    [b"", b"P", b"PK\3\4", b"\x80", b"\x80\x02", b"version https://git-lfs", b"\x89HDF\r\n\x1a\n", b"\0" * 999],
)
def test_what_torch_never_wrote_is_one_error(tmp_path, content):
    error_of(tmp_path, content)


# -- models in which one thing is wrong -----------------------------------------------------------------------------


def model_error(file, **options) -> str:
    with pytest.raises(ModelError) as caught:
        dict(load_weights(file, **options).arrays)
    return str(caught.value)


def changes(shapes):
    """Each key and each way to break it, where the way changes anything."""
    for key, shape in shapes.items():
        for way in WAYS:
            same = (way == "transposed" and shape == shape[::-1]) or (way == "flattened" and len(shape) == 1)
            if not same and way != "complex64":
                yield key, way


MANYLANGS = [(file, key, way) for file, shapes in manylangs_shapes().items() for key, way in changes(shapes)]


@pytest.mark.parametrize(("file", "key", "way"), MANYLANGS)
def test_a_broken_tensor_of_many_langs_is_named_with_its_file(tmp_path, file, key, way):
    folder = write_manylangs(tmp_path / "model")
    arrays = drawn(manylangs_shapes()[file], 1)
    edited = WAYS[way](arrays.pop(key))
    save(folder / file, arrays if edited is None else arrays | {key: np.asarray(edited)})
    said = model_error(folder)
    assert f"{file}: {key}" in said
    assert str(folder) in said


@pytest.mark.parametrize(
    ("file", "key"), [(file, key) for file, shapes in manylangs_shapes().items() for key in shapes]
)
def test_a_renamed_tensor_of_many_langs_is_named(tmp_path, file, key):
    folder = write_manylangs(tmp_path / "model")
    arrays = drawn(manylangs_shapes()[file], 1)
    arrays[f"{key}_of_old"] = arrays.pop(key)
    save(folder / file, arrays)
    said = model_error(folder)
    assert f"{file}: {key} is missing" in said
    assert f"{file}: {key}_of_old has no place" in said


@pytest.fixture
def options_file(tmp_path):
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    return tmp_path / "options.json"


@pytest.mark.parametrize(("key", "way"), [(key, way) for key, way in changes(allennlp_shapes()) if "mix" not in key])
def test_a_broken_tensor_of_an_archive_is_named_with_its_file(tmp_path, options_file, key, way):
    arrays = allennlp_arrays()
    edited = WAYS[way](arrays.pop(key))
    (tmp_path / "weights.th").write_bytes(saved(arrays if edited is None else arrays | {key: np.asarray(edited)}))
    said = model_error(tmp_path / "weights.th", options=options_file)
    assert "weights.th" in said
    assert (key if "char_embedding" not in key or edited is not None else "holds no ELMo") in said


TELLING = ("dropped", "transposed", "truncated", "without rows", "scalar", "of rank plus one", "NaN")


@pytest.mark.filterwarnings("ignore:.*no options file")
@pytest.mark.parametrize(
    ("key", "way"), [(key, way) for key, way in changes(allennlp_shapes()) if "mix" not in key and way in TELLING]
)
def test_where_sizes_follow_from_shapes_a_broken_one_is_still_an_error(tmp_path, key, way):
    arrays = allennlp_arrays()
    edited = WAYS[way](arrays.pop(key))
    (tmp_path / "weights.th").write_bytes(saved(arrays if edited is None else arrays | {key: np.asarray(edited)}))
    assert "weights.th" in model_error(tmp_path / "weights.th")


@pytest.mark.parametrize("way", ["dropped", "too long", "without rows", "NaN", "infinite"])
@pytest.mark.parametrize("part", ["gamma", "scalar_parameters.0", "scalar_parameters.2"])
def test_a_broken_mix_is_named(tmp_path, options_file, part, way):
    arrays = allennlp_arrays()
    edited = WAYS[way](arrays.pop(f"{PREFIX}scalar_mix_0.{part}"))
    arrays |= {} if edited is None else {f"{PREFIX}scalar_mix_0.{part}": edited}
    (tmp_path / "weights.th").write_bytes(saved(arrays))
    assert "scalar_mix_0" in model_error(tmp_path / "weights.th", options=options_file)


@pytest.mark.parametrize("way", ["dropped", "NaN"])
def test_a_prefix_made_to_look_like_an_error_stays_on_its_line(tmp_path, options_file, way):
    prefix = "task\nerror: all is lost\x1b[31m."
    arrays = allennlp_arrays(prefix)
    key = f"{prefix}_elmo_lstm._token_embedder._projection.weight"
    edited = WAYS[way](arrays.pop(key))
    (tmp_path / "weights.th").write_bytes(saved(arrays if edited is None else arrays | {key: edited}))
    said = model_error(tmp_path / "weights.th", options=options_file)
    assert "\nerror:" not in said
    assert "\x1b" not in said


def test_a_mix_of_more_layers_is_named(tmp_path, options_file):
    arrays = allennlp_arrays() | drawn({f"{PREFIX}scalar_mix_0.scalar_parameters.3": (1,)})
    (tmp_path / "weights.th").write_bytes(saved(arrays))
    assert "more than the 3 weights of 3 layers" in model_error(tmp_path / "weights.th", options=options_file)


# -- archives -----------------------------------------------------------------------------------------------------------


def tar_of(file, *members):
    """A tar.gz of (name, type, link or content, claimed size)."""
    with tarfile.open(file, "w:gz") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    return file


class TestTars:
    @pytest.mark.parametrize("name", ["../evil", "/tmp/elmofire-evil", "vocabulary/../../evil", "fta/../../evil"])
    def test_members_that_lead_out_are_not_written_anywhere(self, tmp_path, options_file, name, monkeypatch):
        (tmp_path / "inner").mkdir()
        monkeypatch.chdir(tmp_path / "inner")
        members = {name: b"evil", "weights.th": saved(allennlp_arrays())}
        before = set(tmp_path.rglob("*"))
        file = write_tar(tmp_path / "model.tar.gz", members)
        assert load_weights(file, options=options_file).config.cells == 11
        assert set(tmp_path.rglob("*")) - before == {file}
        assert not os.path.exists("/tmp/elmofire-evil")  # noqa: PTH110

    @pytest.mark.parametrize("name", ["../weights.th", "/weights.th", "deep/weights.th", "weights.th/weights.th"])
    def test_weights_under_another_name_are_not_the_weights(self, tmp_path, name):
        file = write_tar(tmp_path / "model.tar.gz", {name: saved(allennlp_arrays())})
        assert "model.tar.gz: has no weights.th" in model_error(file)

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
    @pytest.mark.parametrize("target", ["/etc/passwd", "other.th", "../../secret"])
    def test_links_and_devices_are_refused(self, tmp_path, kind, target):
        other = ("other.th", tarfile.REGTYPE, saved(allennlp_arrays()))
        file = tar_of(tmp_path / "model.tar.gz", other, ("weights.th", kind, target))
        assert "weights.th is a link" in model_error(file)

    def test_a_sparse_file_is_refused(self, tmp_path):
        info = tarfile.TarInfo("weights.th")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.map": "0,4",
            "GNU.sparse.size": str(1 << 40),
        }
        info.size = 4
        with tarfile.open(tmp_path / "model.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(info, io.BytesIO(b"abcd"))
        assert "weights.th is a link or something else" in model_error(tmp_path / "model.tar.gz")

    @pytest.mark.parametrize("name", ["weights.th", "vocabulary/tokens.txt", "fta/options_file"])
    def test_a_bomb_is_refused(self, tmp_path, name):
        members = {name: b"\0" * (64 << 20), "weights.th ": b""}
        file = write_tar(tmp_path / "model.tar.gz", members)
        assert file.stat().st_size < 1 << 20
        assert "model.tar.gz" in model_error(file)

    def test_a_bomb_takes_little_memory(self, tmp_path):
        file = write_tar(tmp_path / "model.tar.gz", {"weights.th": b"\0" * (200 << 20)})
        with little_memory():
            said = model_error(file)
        assert "unpacks to more than" in said

    def test_a_header_of_a_gigabyte_is_refused(self, tmp_path):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
        with gzip.open(tmp_path / "model.tar.gz", "wb") as file:
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.write(b"a" * (40 << 20))
        assert "claims 1,073,741,824 bytes" in model_error(tmp_path / "model.tar.gz")

    def test_too_many_members_are_refused(self, tmp_path):
        file = write_tar(tmp_path / "model.tar.gz", {f"vocabulary/{k}": b"" for k in range(10_001)})
        assert "more than 10,000 members" in model_error(file)

    def test_two_weights_are_refused(self, tmp_path):
        part = ("weights.th", tarfile.REGTYPE, saved(allennlp_arrays()))
        assert "two members called weights.th" in model_error(tar_of(tmp_path / "model.tar.gz", part, part))

    def test_truncations_are_one_error(self, tmp_path):
        whole = write_tar(tmp_path / "whole.tar.gz", {"weights.th": saved(allennlp_arrays())}).read_bytes()
        for length in [0, 1, 10, 20, *range(100, len(whole) - 20, len(whole) // 25)]:
            (tmp_path / "model.tar.gz").write_bytes(whole[:length])
            assert "model.tar.gz" in model_error(tmp_path / "model.tar.gz")

    @pytest.mark.parametrize("content", [b"no gzip at all", b"\x1f\x8b\x08" + b"\0" * 50])
    def test_what_is_no_archive_is_one_error(self, tmp_path, content):
        (tmp_path / "model.tar.gz").write_bytes(content)
        assert "is not a whole tar.gz archive" in model_error(tmp_path / "model.tar.gz")

    @pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 10_000])
    def test_options_that_are_no_object_are_one_error(self, tmp_path, content):
        members = {"weights.th": saved(allennlp_arrays()), "fta/x.options_file": content}
        assert "fta/x.options_file" in model_error(write_tar(tmp_path / "model.tar.gz", members))


def test_a_user_reads_one_line_and_nothing_runs(tmp_path):
    folder = write_manylangs(tmp_path / "model")
    evidence = tmp_path / "evidence"
    (folder / "encoder.pkl").write_bytes(legacy_file(pickled({"a": Call(os.system, f"touch {evidence}")})))
    done = run_embed(folder)
    assert done.code == 2
    assert "encoder.pkl: the pickle asks for the global posix.system" in done.stderr
    assert "Traceback" not in done.stderr
    assert not evidence.exists()
