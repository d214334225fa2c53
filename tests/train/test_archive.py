"""What is packed is unpacked, byte for byte; pieces that are missing, damaged or of another archive are named."""

import json
import re
import shutil
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from train.slow_corpus import contents
from train.test_prepare import as_blocks, random_documents

from elmofire.errors import DataError
from elmofire.train.archive import pieces
from elmofire.train.archive.coding import compressed, decoded, decompressed, encoded, shard_of, symbols
from elmofire.train.archive.packing import pack, unpack
from elmofire.train.corpus import blocks, shards
from elmofire.train.corpus.prepare import prepare

WORDS = [f"w{n}" for n in range(5_000)]


@given(arrays.arrays(np.uint32, st.integers(0, 60), elements=st.integers(0, 2**32 - 1)))
def test_any_numbers_come_back(row):
    data = encoded(row)
    np.testing.assert_array_equal(decoded(data), row)
    slow = bytearray()
    for number in row.tolist():
        groups = [number & 127]
        while number := number >> 7:
            groups.append(128 | number & 127)
        slow += bytes(reversed(groups))
    assert data == bytes(slow)


@given(
    st.lists(st.lists(st.lists(st.integers(2, 10**6), min_size=1, max_size=5), min_size=1), max_size=5), st.booleans()
)
def test_any_shard_comes_back(documents, goes_on):
    sentences = [sentence for document in documents for sentence in document]
    starts = np.cumsum([0, *map(len, documents)])[: len(documents)][goes_on:]
    shard = [
        np.array([word for sentence in sentences for word in sentence], np.uint32),
        np.cumsum([0, *map(len, sentences)])[1:].astype(np.uint32),
        starts.astype(np.uint32),
    ]
    row = symbols(*shard)
    slow = []
    for number, sentence in enumerate(sentences):
        slow += [0] if number in starts else []
        slow += [*sentence, 1]
    assert row.tolist() == slow
    for found, expected in zip(shard_of(row), shard, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("data", [b"\x80", b"\x05\xff", b"\xff" * 5 + b"\x01"])
def test_bytes_that_are_no_symbols_are_refused(data):
    with pytest.raises(DataError, match="no symbols"):
        decoded(data)


def test_a_bomb_is_not_unpacked():
    with pytest.raises(DataError, match="not as long"):
        decompressed(compressed(bytes(1 << 24)), 1000)
    with pytest.raises(DataError, match="cannot be unpacked"):
        decompressed(b"nonsense", 1000)
    with pytest.raises(DataError, match="not as long"):
        decompressed(compressed(b"abc" * 1000)[:-20], 10_000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text(as_blocks(random_documents(1500, seed=1, words=WORDS)))
    (folder / "eval.txt").write_text("w1 w2 w3\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 20_000)
        patch.setattr(shards, "SHARD_TOKENS", 8_000)
        wanted = {
            "pretokenized": True,
            "documents": "blocks",
            "held_out": 0.1,
            "vocabulary": 500,
            "check_against": (str(folder / "eval.txt"),),
            "ngram": 2,
        }
        made = prepare([str(folder / "text.txt")], folder / "corpus", **wanted, processes=1)
    assert len(made.train.shards) > 2
    return made


def test_a_corpus_comes_back_byte_for_byte(corpus, tmp_path):
    packed = pack(corpus.folder, tmp_path / "one", piece_bytes=5000, processes=1)
    assert pack(corpus.folder, tmp_path / "two", piece_bytes=5000, processes=2) == packed
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    sizes = [file.stat().st_size for file in (tmp_path / "one").iterdir()]
    assert packed.pieces == len(sizes) > 10
    assert max(sizes) <= 5000
    assert packed.bytes == sum(sizes)
    for processes in (1, 2):
        found = unpack(tmp_path / "one", tmp_path / f"back{processes}", processes=processes)
        assert contents(found.folder) == contents(corpus.folder)


def test_pieces_may_be_moved_under_any_names(corpus, tmp_path):
    pack(corpus.folder, tmp_path / "archive", piece_bytes=20_000, processes=1)
    for number, file in enumerate(sorted((tmp_path / "archive").iterdir(), reverse=True)):
        file.rename(tmp_path / "archive" / f"moved{number}.piece")
    assert contents(unpack(tmp_path / "archive", tmp_path / "back", processes=1).folder) == contents(corpus.folder)


def _lose(folder):
    (folder / "00001.piece").unlink()


def _lose_the_end(folder):
    sorted(folder.iterdir())[-1].unlink()


def _cut(folder):
    data = (folder / "00001.piece").read_bytes()
    (folder / "00001.piece").write_bytes(data[:-1])


def _flip(folder):
    data = bytearray((folder / "00001.piece").read_bytes())
    data[1000] ^= 1
    (folder / "00001.piece").write_bytes(data)


def _of_another(folder):
    data = (folder / "00001.piece").read_bytes()
    line, content = data.split(b"\n", 1)
    header = {**json.loads(line), "archive": "0" * 32}
    (folder / "00001.piece").write_bytes(json.dumps(header).encode() + b"\n" + content)


def _twice(folder):
    shutil.copy(folder / "00001.piece", folder / "copy.piece")


def _empty(folder):
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose, "piece 1 is missing"),
        (_lose_the_end, "what follows piece .* is missing"),
        (_cut, "00001.piece: damaged"),
        (_flip, "00001.piece: damaged"),
        (_of_another, "more than one archive"),
        (_twice, "copy.piece: the same piece as 00001.piece"),
        (_empty, "no pieces"),
    ],
)
def test_a_broken_archive_says_which_piece(corpus, tmp_path, damage, message):
    pack(corpus.folder, tmp_path / "archive", piece_bytes=20_000, processes=1)
    damage(tmp_path / "archive")
    with pytest.raises(DataError, match=message):
        unpack(tmp_path / "archive", tmp_path / "back", processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": None}, "0.piece: damaged"),
        ({"blake2b": None}, "0.piece: damaged"),
        ({"piece": 0.5}, "0.piece: damaged"),
        ({"piece": "0"}, "0.piece: damaged"),
        ({"piece": True}, "0.piece: damaged"),
        ({"piece": 10**15}, "piece 19 is missing; and 999,999,999,999,980 more"),
        ({"piece": 21}, "piece 19 is missing; and 1 more"),
        ({"piece": 20}, "piece 19 is missing\n"),
    ],
)
def test_what_a_piece_says_of_itself_is_not_trusted(tmp_path, change, message):
    header = {"kind": "elmofire corpus archive", "format": 1, "archive": "x", "piece": 0, "last": True, "bytes": 3}
    header |= {"blake2b": blake2b(b"abc", digest_size=32).hexdigest(), **change}
    header = {name: value for name, value in header.items() if value is not None}
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/0.piece").write_bytes(json.dumps(header).encode() + b"\nabc")
    with pytest.raises(DataError, match=re.escape(message)):
        unpack(tmp_path / "archive", tmp_path / "back", processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


def frame(content: bytes, **header) -> bytes:
    header = {"name": "words", "bytes": len(content), "raw": 3, **header}
    line = json.dumps(header).encode()
    return len(line).to_bytes(4, "little") + line + content


WHOLE = {name: frame(compressed(b"abc"), name=name) for name in ("corpus.json", "vocab.txt", "words")}


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([frame(b"abc", raw=0.5)], "not as it was written"),
        ([frame(b"abc", bytes=2.5)], "not as it was written"),
        ([frame(b"abc", bytes=True)], "not as it was written"),
        ([frame(b"abc", name=["words"])], "not as it was written"),
        ([frame(b"abc", bytes=-1)], "not as it was written"),
        ([(4096).to_bytes(4, "little") + b"[" * 4096], "not as it was written"),
        ([(4097).to_bytes(4, "little") + b"{}" * 9999], "not as it was written"),
        ([frame(b"abc")], "words: cannot be unpacked"),
        ([frame(b"abc", bytes=10**6)], "ends in the middle"),
        ([WHOLE["words"]], "has no corpus.json, vocab.txt"),
        ([*WHOLE.values(), frame(compressed(b"\x80"), name="train-00000")], "train-00000: cannot be unpacked"),
        ([*WHOLE.values(), frame(compressed(b"\7"), name="train-00000")], "train-00000: has words that"),
        ([*WHOLE.values()], "not the corpus that was packed"),
    ],
)
def test_what_an_archive_says_of_its_contents_is_not_trusted(tmp_path, frames, message):
    (tmp_path / "archive").mkdir()
    writer = pieces.PieceWriter(tmp_path / "archive", "x", 10_000)
    for content in [*frames, bytes(4)]:
        writer.write(content)
    writer.close()
    with pytest.raises(DataError, match=rf"(?s){re.escape(message)}.*\nhint: .*pack the corpus again"):
        unpack(tmp_path / "archive", tmp_path / "back", processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("damage", ["words", "checksum", "no checksum"])
def test_an_archive_of_another_corpus_than_its_table_tells_is_refused(corpus, tmp_path, damage):
    table = json.loads((corpus.folder / "corpus.json").read_text())
    if damage == "checksum":
        table["files"]["targets.npy"]["blake2b"] = "0" * 64
    if damage == "no checksum":
        del table["files"]["targets.npy"]["blake2b"]
    words = "\n".join(corpus.spellings(range(corpus.words))).encode()
    small = {"corpus.json": json.dumps(table).encode(), "vocab.txt": (corpus.folder / "vocab.txt").read_bytes()}
    small["words"] = words.replace(b"w17", b"w\xff7") if damage == "words" else words
    (tmp_path / "archive").mkdir()
    writer = pieces.PieceWriter(tmp_path / "archive", "x", 1 << 20)
    for name, data in small.items():
        writer.write(frame(compressed(data), name=name, raw=len(data)))
    writer.write(bytes(4))
    writer.close()
    with pytest.raises(DataError, match="archive: what it holds is not the corpus that was packed"):
        unpack(tmp_path / "archive", tmp_path / "back", processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("name", ["../evil-00000", "evil.sh", "words.counts.npy"])
def test_an_archive_writes_nothing_that_a_corpus_has_not(tmp_path, name):
    (tmp_path / "archive").mkdir()
    writer = pieces.PieceWriter(tmp_path / "archive", "x", 10_000)
    writer.write(frame(b"abc", name=name))
    writer.close()
    with pytest.raises(DataError, match="not as it was written"):
        unpack(tmp_path / "archive", tmp_path / "back", processes=1)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


def test_what_is_there_is_not_overwritten(corpus, tmp_path):
    pack(corpus.folder, tmp_path / "archive", processes=1)
    for call in (
        lambda: pack(corpus.folder, tmp_path / "archive"),
        lambda: unpack(tmp_path / "archive", corpus.folder),
    ):
        with pytest.raises(DataError, match="exists"):
            call()
    with pytest.raises(DataError, match="too small"):
        pack(corpus.folder, tmp_path / "small", piece_bytes=100)
    with pytest.raises(DataError, match="no such folder"):
        unpack(tmp_path / "nowhere", tmp_path / "back")
