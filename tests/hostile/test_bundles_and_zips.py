"""Checkpoints and zips that lie, loop, are cut off or scribbled over: one ModelError, quickly, and never anything else."""

import contextlib
import io
import json
import shutil
import stat
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from formats.tf_writer import MAGIC, content, entry, field, header, sealed, table, variables_of, varint, write_bundle
from hostile.breaking import WORDS, error_of, load_all, write_model
from models import lively, tiny

from elmofire import ModelError, load_weights
from elmofire.formats.published.from_tensorflow.bundle import Bundle
from elmofire.formats.published.options_2018 import options_of

CONFIG = tiny(layers=1)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A whole checkpoint's folder."""
    folder = tmp_path_factory.mktemp("whole")
    write_bundle(folder / "model.ckpt-1", variables_of(lively(CONFIG)), in_a_block=7)
    (folder / "options.json").write_text(json.dumps(options_of(CONFIG)))
    assert load_all(folder).config == CONFIG
    return folder


@pytest.fixture
def run(tmp_path, whole) -> Path:
    """One to break."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture(scope="module")
def parts(whole) -> tuple[list[bytes], bytes]:
    return parts_of(index_of(whole).read_bytes())


def index_of(folder: Path) -> Path:
    return folder / "model.ckpt-1.index"


def data_of(folder: Path) -> Path:
    return folder / "model.ckpt-1.data-00000-of-00001"


class TestDamage:
    @pytest.mark.parametrize("kind", [index_of, data_of])
    def test_a_file_that_was_cut_off_is_refused_wherever_it_ends(self, run, kind):
        file = kind(run)
        whole = file.read_bytes()
        for size in [*range(0, len(whole), max(1, len(whole) // 150)), len(whole) - 1]:
            file.write_bytes(whole[:size])
            assert "model.ckpt-1" in error_of(run), size

    @pytest.mark.parametrize("kind", [index_of, data_of])
    def test_a_changed_bit_is_found_wherever_it_is(self, run, kind):
        """Each byte that is read is under a checksum; the block about blocks and the footer's padding are not read."""
        file = kind(run)
        whole = file.read_bytes()
        about = whole.index(sealed(content([]))) if kind is index_of else len(whole)
        for at in range(0, len(whole), max(1, len(whole) // 300)):
            if about <= at < about + 17 or (kind is index_of and at >= len(whole) - 48):
                continue
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            assert "checksum" in error_of(run), at

    @pytest.mark.parametrize("seed", range(60))
    def test_scribbles_over_either_file_never_get_through(self, run, seed):
        rng = np.random.default_rng(seed)
        for kind in (index_of, data_of):
            file = kind(run)
            whole = file.read_bytes()
            scribbled = bytearray(whole)
            at, size = int(rng.integers(len(whole))), int(rng.integers(1, 40))
            scribbled[at : at + size] = rng.bytes(size)
            file.write_bytes(scribbled)
            loads_or_model_error(run)
            file.write_bytes(whole)

    @pytest.mark.parametrize("seed", range(300))
    def test_scribbles_under_a_right_checksum_never_get_through(self, run, parts, seed):
        rng = np.random.default_rng([7, seed])
        blocks, index = [*parts[0]], parts[1]
        which = int(rng.integers(len(blocks) + 1))
        scribbled = bytearray(index if which == len(blocks) else blocks[which])
        for _ in range(int(rng.integers(1, 4))):
            scribbled[int(rng.integers(len(scribbled)))] = int(
                rng.choice([0, 1, 8, 0x7F, 0x80, 0xFF, rng.integers(256)])
            )
        if which == len(blocks):
            index = bytes(scribbled)
        else:
            blocks[which] = bytes(scribbled)
        index_of(run).write_bytes(table([sealed(block) for block in blocks], index=sealed(index)))
        loads_or_model_error(run)

    @pytest.mark.parametrize("seed", range(50))
    def test_nonsense_before_a_right_end_is_refused(self, run, seed):
        rng = np.random.default_rng([8, seed])
        index_of(run).write_bytes(rng.bytes(int(rng.integers(200))) + rng.bytes(40) + MAGIC)
        assert "is not a whole index of a TensorFlow checkpoint" in error_of(run)

    def test_a_missing_data_file_is_named(self, run):
        data_of(run).unlink()
        assert (
            "lm/char_embed cannot be read, because model.ckpt-1.data-00000-of-00001 cannot: No such file"
            in error_of(run)
        )

    def test_a_folder_in_a_files_place_is_refused(self, run):
        for kind in (data_of, index_of):
            kind(run).unlink()
            kind(run).mkdir()
            error_of(run / "model.ckpt-1.index")


def loads_or_model_error(what: Path) -> None:
    """Any other exception fails the test."""
    with contextlib.suppress(ModelError):
        load_all(what)


def parts_of(data: bytes) -> tuple[list[bytes], bytes]:
    """The blocks of an index and the index of them, unsealed."""
    about = data.index(sealed(content([])))
    index = data[about + len(sealed(content([]))) : -48 - 5]
    blocks, at = [], 0
    while at < about:
        end = next(k for k in range(at + 5, about + 1) if sealed(data[at : k - 5]) == data[at:k])
        blocks.append(data[at : end - 5])
        at = end
    return blocks, index


def of_entries(folder: Path, entries: dict[str, bytes], *, head: bytes | None = None) -> Path:
    """Replace the index by one of these entries."""
    items = [
        (b"", header() if head is None else head),
        *sorted((name.encode(), value) for name, value in entries.items()),
    ]
    index_of(folder).write_bytes(table([sealed(content(items))]))
    return folder


EMBED = {"shape": (261, 5), "size": 5220}
LIES = [
    ("has 80 bytes, but 5,220 would make the shape (261, 5)", entry(shape=(261, 5), size=80)),
    ("has 0 bytes, but 73,786,976,294,838,206,464 would make the shape", entry(shape=(1 << 32, 1 << 32))),
    ("ends at byte 10,005,220 of model.ckpt-1.data-00000-of-00001", entry(**EMBED, offset=10_000_000)),
    ("ends at byte 18,446,744,073,709,556,835 of model.ckpt-1.data", entry(**EMBED, offset=(1 << 64) - 1)),
    ("has a shape that cannot be", entry(shape=((1 << 64) - 1,), size=4)),
    ("has a shape that cannot be", entry(shape=(1,) * 9, size=4)),
    ("has a shape that cannot be", field(1, 1) + field(2, 7)),
    ("stands in data file 1, but there are 1", entry(**EMBED, shard=1)),
    ("stands in data file 18446744073709551615, but there are 1", entry(**EMBED, shard=(1 << 64) - 1)),
    ("holds values of TensorFlow's type 7", entry(**EMBED, dtype=7)),
    ("holds values of TensorFlow's type 0", b""),
    ("holds no floating-point numbers, but int32", entry(**EMBED, dtype=3)),
    ("is cut into slices", entry(**EMBED) + field(7, field(1, b""))),
    ("a field does not end", varint(2 << 3 | 2) + varint(1 << 40)),
    ("a field is of the unknown kind 3", varint(2 << 3 | 3)),
    ("a field is not a number", field(1, b"1")),
    ("a number does not end", b"\x08" + b"\xff" * 30),
]


class TestLies:
    @pytest.mark.parametrize(("said", "lie"), LIES)
    def test_what_an_entry_claims_is_held_against_the_files(self, run, said, lie):
        assert f"lm/char_embed {said}" in error_of(of_entries(run, {"lm/char_embed": lie}))

    def test_numbers_without_their_checksum_are_not_given_out(self, run):
        bundle = Bundle(of_entries(run, {"lm/char_embed": entry(**EMBED)}) / "model.ckpt-1")
        with pytest.raises(ModelError, match="lm/char_embed: the numbers do not have the checksum of the index"):
            bundle.read("lm/char_embed")

    @pytest.mark.parametrize(
        ("head", "said"),
        [
            (header(more=field(2, 1)), "its numbers are big-endian"),
            (header(0), "it claims 0 data files"),
            (header(1 << 40), "it claims 1,099,511,627,776 data files"),
            (field(1, b"one"), "a field is not a number"),
            (b"\x80" * 20, "a number does not end"),
        ],
    )
    def test_the_header_is_not_believed(self, run, head, said):
        assert said in error_of(of_entries(run, {"lm/char_embed": entry()}, head=head))

    def test_an_index_without_a_header_is_refused(self, run):
        index_of(run).write_bytes(table([sealed(content([(b"lm/char_embed", entry())]))]))
        assert "it does not begin with a header" in error_of(run)
        index_of(run).write_bytes(table([]))
        assert "it does not begin with a header" in error_of(run)

    def test_compressed_blocks_are_refused_by_name(self, run):
        block = content([(b"", header())])
        for kind, said in {1: "with snappy, which is not supported", 9: "in the unknown way 9"}.items():
            index_of(run).write_bytes(table([sealed(block, compression=kind)]))
            assert said in error_of(run)

    def test_many_names_for_the_same_numbers_are_refused(self, run):
        arrays = variables_of(lively(CONFIG))
        size = max(array.nbytes for array in arrays.values())
        entries = {
            name: entry(shape=array.shape, size=array.nbytes, offset=size - array.nbytes)
            for name, array in arrays.items()
        }
        data_of(run).write_bytes(bytes(size))
        assert "the variables claim " in (said := error_of(of_entries(run, entries)))
        assert f"bytes together, but the data files have {size:,}" in said


class TestLoops:
    def handles(self, *pairs: tuple[int, int]) -> bytes:
        return sealed(content([(b"%05d" % k, varint(at) + varint(size)) for k, (at, size) in enumerate(pairs)]))

    @pytest.mark.parametrize(
        ("handles", "said"),
        [
            ([(0, "size")] * 1000, "its blocks overlap"),
            ([(1 << 62, 100)], "a block ends at byte"),
            ([(0, (1 << 64) - 1)], "a block ends at byte"),
            ([("index", "index size")], "wrong checksum"),
        ],
        ids=["the same block again and again", "far away", "huge", "itself"],
    )
    def test_an_index_of_blocks_may_not_lead_astray(self, run, handles, said):
        block = sealed(content([(b"", header())]))
        about = len(sealed(content([])))
        known = {"size": len(block) - 5, "index": len(block) + about, "index size": 10}
        pairs = [tuple(known.get(value, value) for value in pair) for pair in handles]
        index_of(run).write_bytes(table([block], index=self.handles(*pairs)))
        assert said in error_of(run)

    def test_an_index_of_blocks_that_names_itself_ends(self, run):
        """Its own entries are no variables, and it cannot come twice."""
        block = sealed(content([(b"", header())]))
        start = len(block) + len(sealed(content([])))
        size = 0
        for _ in range(3):  # until the size that is written is the size it has
            own = self.handles((0, len(block) - 5), (start, size))
            size = len(own) - 5
        index_of(run).write_bytes(table([block], index=own))
        assert "lm/ or bilm/" in error_of(run)

    @pytest.mark.parametrize(
        "block",
        [
            varint(5) + varint(1) + varint(0) + b"a" + bytes(4),
            varint(0) + varint(1 << 60) + varint(0) + bytes(4),
            varint(0) + varint(1) + varint(1 << 60) + b"a" + bytes(4),
            b"\xff" * 64 + bytes(4),
            b"",
            b"\xff\xff\xff\xff",
            varint(0) + varint(2000) + varint(0) + b"a" * 2000 + bytes(4),
        ],
        ids=["shares what is not there", "long name", "long value", "varints", "empty", "restarts", "a name of 2,000"],
    )
    def test_entries_have_to_fit_in_their_block(self, run, block):
        index_of(run).write_bytes(table([sealed(content([(b"", header())])), sealed(block)]))
        error_of(run)

    def test_names_have_to_be_in_order(self, run):
        for names in (["b", "a"], ["a", "a"], [""]):
            items = [(b"", header()), *[(name.encode(), entry()) for name in names]]
            index_of(run).write_bytes(table([sealed(content(items))]))
            assert "its names are not in order" in error_of(run)

    def test_a_huge_index_is_refused_at_once(self, run):
        with index_of(run).open("r+b") as file:
            file.truncate(10 << 30)
        start = time.monotonic()
        assert "10,737,418,240 bytes are too many for an index of variables" in error_of(run)
        assert time.monotonic() - start < 5

    def test_very_many_variables_are_refused(self, run):
        names = {f"lm/{number:06d}": entry() for number in range(10_002)}
        assert "it has more than 10,000 variables" in error_of(of_entries(run, names))


@pytest.fixture
def packed(tmp_path) -> Path:
    folder = write_model(tmp_path, "hdf5")
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
    assert len(load_all(tmp_path / "model.zip").vocabulary or []) == len(WORDS)
    return tmp_path / "model.zip"


def member(name: str, *, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


class TestZips:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("../options.json", "../options.json leads out of the archive"),
            ("a/../../b", "a/../../b leads out of the archive"),
            ("a//b", "a//b leads out of the archive, or around in it"),
            ("./a", "./a leads out of the archive, or around in it"),
            ("/etc/passwd", "/etc/passwd is not a path inside the archive"),
            ("C:/a", "C:/a is not a path inside the archive"),
            ("a\\..\\b", "a\\..\\b is not a path inside the archive"),
        ],
    )
    def test_names_that_lead_elsewhere_are_refused(self, packed, name, said):
        with zipfile.ZipFile(packed, "a") as archive:
            archive.writestr(member(name), b"")
        assert f"{packed}: {said}" in error_of(packed)

    @pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
    def test_links_and_devices_are_refused(self, packed, kind):
        with zipfile.ZipFile(packed, "a") as archive:
            archive.writestr(member("vectors", mode=kind | 0o777), b"/etc/passwd")
        assert "vectors is a link or something else that is no file" in error_of(packed)

    def test_a_name_that_stands_twice_is_refused(self, packed):
        with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("options.json", b"{}")
        assert "options.json stands there twice" in error_of(packed)

    def test_encrypted_files_are_refused(self, packed):
        data = bytearray(packed.read_bytes())
        at = data.index(b"PK\1\2")
        data[at + 8] |= 1
        packed.write_bytes(data)
        assert "is encrypted" in error_of(packed)

    def test_all_that_is_wrong_is_said_at_once(self, packed):
        with zipfile.ZipFile(packed, "a", zipfile.ZIP_BZIP2) as archive:
            archive.writestr(member("/a"), b"")
            archive.writestr(member("b", mode=stat.S_IFLNK), b"c")
            archive.writestr("c", b"c" * 100)
        said = error_of(packed)
        assert f"{packed}: 3 problems" in said
        assert "c is compressed in the way 12, which is not supported" in said

    def test_very_many_files_are_refused(self, packed):
        with zipfile.ZipFile(packed, "a") as archive:
            for number in range(1000):
                archive.writestr(f"{number}", b"")
        assert "files are too many for a model" in error_of(packed)

    @pytest.mark.parametrize("name", ["weights.hdf5", "vocab.txt", "anything"])
    def test_bombs_are_refused_before_they_are_opened(self, tmp_path, name):
        folder = write_model(tmp_path, "hdf5")
        file = tmp_path / "bomb.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in sorted(folder.iterdir()):
                if each.name != name:
                    archive.write(each, each.name)
            with archive.open(name, "w") as out:
                for _ in range(200):
                    out.write(bytes(MEGABYTE))
        assert file.stat().st_size < MEGABYTE
        said = error_of(file)
        assert f"{name} claims 209,715,200 bytes out of " in said
        assert "the files claim 209," in said

    @pytest.mark.parametrize("claimed", [100, 10_000_000, 0xFFFFFFFE])
    def test_a_size_that_is_not_true_is_found(self, packed, claimed):
        data = bytearray(packed.read_bytes())
        with zipfile.ZipFile(packed) as archive:
            number = archive.namelist().index("weights.hdf5")
        at = -1
        for _ in range(number + 1):
            at = data.index(b"PK\1\2", at + 1)
        struct.pack_into("<I", data, at + 24, claimed)
        packed.write_bytes(data)
        assert "weights.hdf5" in error_of(packed)

    def test_an_archive_that_was_cut_off_is_refused_wherever_it_ends(self, packed):
        whole = packed.read_bytes()
        for size in range(0, len(whole), len(whole) // 60):
            packed.write_bytes(whole[:size])
            assert "model.zip" in error_of(packed)

    @pytest.mark.parametrize("seed", range(120))
    @pytest.mark.parametrize("format", ["hdf5", "native"])
    def test_scribbles_never_get_through(self, tmp_path, format, seed):
        rng = np.random.default_rng([9, seed])
        folder = write_model(tmp_path, format)
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED if seed % 2 else zipfile.ZIP_DEFLATED) as archive:
            for each in sorted(folder.iterdir()):
                archive.write(each, each.name)
        data = bytearray(written.getvalue())
        directory = data.index(b"PK\1\2")
        for _ in range(int(rng.integers(1, 4))):  # half of them into the directory, which is small
            at = int(rng.integers(directory if rng.random() < 0.5 else 0, len(data)))
            data[at] = int(rng.integers(256))
        (tmp_path / "scribbled.zip").write_bytes(data)
        loads_or_model_error(tmp_path / "scribbled.zip")

    def test_a_folder_called_zip_is_a_folder(self, tmp_path):
        (tmp_path / "model.zip").mkdir()
        with pytest.raises(ModelError, match="holds no model"):
            load_weights(tmp_path / "model.zip")
