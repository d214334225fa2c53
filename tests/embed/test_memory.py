"""Memory is what a batch needs, whatever the input; what is larger lies in files that have no name."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import lively, tiny

from elmofire import Embedder, open_embeddings, save_weights
from elmofire.embed import sentences, writers
from elmofire.embed.job import embed_to_file
from elmofire.engine import mixing, spill
from elmofire.engine.compiled import library
from elmofire.errors import InputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped, and how much memory is whose")


class TestRoom:
    @pytest.fixture(autouse=True)
    def a_folder_of_its_own(self, tmp_path, monkeypatch):
        self.folder = tmp_path
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(spill, "LIMIT_ROWS", 10)

    def mapped(self):
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(self.folder) in line]

    @linux
    def test_beyond_the_limit_it_is_a_file_without_a_name_that_goes_with_the_array(self):
        assert spill.allocate((10, 25)).shape == (10, 25)
        assert not self.mapped()
        array = spill.allocate((11, 26))
        assert (array.shape, array.dtype, type(array)) == ((11, 26), np.float32, np.ndarray)
        numbers = np.arange(286, dtype=np.float32).reshape(11, 26)
        array[:] = numbers
        assert len(self.mapped()) == 1
        assert not list(self.folder.iterdir())
        row = array[3]
        del array
        np.testing.assert_array_equal(row, numbers[3])
        del row
        assert not self.mapped()

    @linux
    def test_rows_may_be_another_axis(self):
        kept = spill.allocate((3, 10, 2), rows=10)
        assert not self.mapped()
        spilled = spill.allocate((3, 11, 2), np.int32, rows=11)
        assert len(self.mapped()) == 1
        assert (kept.dtype, spilled.dtype, spilled.shape) == (np.float32, np.int32, (3, 11, 2))

    @linux
    @pytest.mark.parametrize("bounds", [(0, 10, 1), (0, 30, 1), (28, -1, -1), (5, 5, 1), (0, 21, 7)], ids=str)
    def test_long_counts_are_in_files_too(self, bounds, monkeypatch):
        monkeypatch.setattr(spill, "_ROWS_AT_ONCE", 7)
        found = spill.long_arange(*bounds)
        np.testing.assert_array_equal(found, np.arange(*bounds), strict=True)
        assert len(self.mapped()) == (len(found) > 10)

    @linux
    def test_a_disk_without_room_is_an_error_before_anything_is_written(self):
        program = (
            "import resource; from elmofire.engine import spill; "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); spill.allocate((100_000, 100))"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.returncode == 1
        assert "no room for 0.0 GB of vectors" in run.stderr
        assert "set TMPDIR" in run.stderr

    @pytest.mark.parametrize("layers", ["average", "all", "top", 0, [0.0, 1.0, 2.0]], ids=str)
    def test_vectors_are_the_same_in_files(self, layers, monkeypatch):
        sentences = [[f"w{n % 40}" for n in range(length)] for length in (300, 7, 0, 40)]
        elmo = Embedder(lively(tiny()), device="cpu")
        monkeypatch.setattr(spill, "LIMIT_ROWS", 1 << 30)
        expected = elmo.embed(sentences, layers=layers)
        monkeypatch.setattr(spill, "LIMIT_ROWS", 0)
        monkeypatch.setattr(mixing, "_CHUNK_BYTES", 500)
        for found, wanted in zip(elmo.embed(sentences, layers=layers), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    @pytest.mark.parametrize("layers", ["average", "all"])
    def test_files_written_in_chunks_are_the_same(self, suffix, layers, monkeypatch):
        sentences = [[f"w{n % 40}" for n in range(length)] for length in (300, 7, 0, 40)]
        elmo = Embedder(lively(tiny()), device="cpu")
        monkeypatch.setattr(writers, "_CHUNK_BYTES", 500)
        monkeypatch.setattr(writers, "_BLOCK_BYTES", 50)
        embed_to_file(elmo, sentences, self.folder / f"v.{suffix}", layers=layers, dtype="float16")
        found = open_embeddings(self.folder / f"v.{suffix}")
        for number, wanted in enumerate(elmo.embed(sentences, layers=layers)):
            np.testing.assert_array_equal(found[number], wanted.astype(np.float16))
            assert found.tokens(number) == sentences[number] or suffix == "hdf5"


SENTENCES = [[f"w{n % 40}" for n in range(300)], ["a", "w3", "b"] * 2, [], ["b", "w7", "</S>", "w" * 50] * 10]


class TestLongSentences:
    """Those of more than so many tokens are no lists inside: nobody should see it."""

    @pytest.fixture
    def elmo(self):
        return Embedder(lively(tiny()), device="cpu")

    @pytest.fixture
    def long(self, monkeypatch):
        """Call it, and sentences are long from 5 tokens on."""

        def patch():
            for module, name, value in ((sentences, "LONG", 5), (sentences, "_AT_ONCE", 7), (spill, "LIMIT_ROWS", 10)):
                monkeypatch.setattr(module, name, value)

        return patch

    @given(tokens=st.lists(st.text(st.characters(), max_size=3), min_size=1, max_size=30))
    def test_they_give_their_tokens_back(self, tokens):
        with mock.patch.multiple(sentences, _AT_ONCE=4), mock.patch.multiple(spill, LIMIT_ROWS=5):
            sentence = sentences.LongSentence(tokens)
            assert len(sentence) == len(tokens)
            assert sentence.as_list() == tokens
            assert [token for part in sentence.parts() for token in part] == tokens
            assert list(sentence.distinct()) == list(dict.fromkeys(tokens))

    def test_vectors_and_tokens_are_the_same(self, elmo, long):
        expected, listed, truncated = elmo.embed(SENTENCES), list(elmo.stream(SENTENCES)), elmo.truncated
        long()
        other = Embedder(lively(tiny()), device="cpu")
        for found, wanted in zip(other.embed(SENTENCES), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        for (tokens, found), (_, wanted) in zip(other.stream(SENTENCES), listed, strict=True):
            assert isinstance(tokens, list)
            np.testing.assert_array_equal(found, wanted)
        assert [tokens for tokens, _ in listed] == list(other.token_lists(SENTENCES)) == SENTENCES
        assert other.truncated == truncated > 0

    def test_a_state_goes_on_from_them(self, elmo, long):
        expected, after = elmo.embed(SENTENCES, state=elmo.zero_state())
        long()
        found, state = elmo.embed(SENTENCES, state=elmo.zero_state())
        np.testing.assert_array_equal(state.memory, after.memory)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    def test_files_are_the_same(self, suffix, elmo, long, tmp_path):
        given = [*SENTENCES, ['"', '", "', "\\", "\ud800", "é"] * 3]
        embed_to_file(elmo, given, tmp_path / f"lists.{suffix}", boundaries=True)
        long()
        embed_to_file(elmo, given, tmp_path / f"long.{suffix}", boundaries=True)
        wanted, found = (open_embeddings(tmp_path / f"{name}.{suffix}") for name in ("lists", "long"))
        assert [found.tokens(number) for number in range(len(found))] == given
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_an_error_tells_which_sentence_it_was(self, elmo, long):
        long()
        with pytest.raises(InputError, match="token 9 of sentence 1 is int"):
            elmo.embed([["a"] * 9, [*["a"] * 9, 3]])


def peak_of(command):
    """The most memory of its own (RssAnon, bytes) that a process had, mapped files not counted."""
    process, peak = subprocess.Popen(command), 0
    while process.poll() is None:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]) << 10)
        time.sleep(0.005)
    assert process.returncode == 0
    return peak


MAKES_VECTORS = """
import random, sys
from pathlib import Path
from elmofire import Embedder
from elmofire.embed.job import embed_to_file

folder, tokens, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ranks = range(1, 50_001)
text = random.Random(5).choices([f"w{rank}" for rank in ranks], weights=[1 / rank for rank in ranks], k=tokens)
sentences = (text[first : first + length] for first in range(0, tokens, length))
embed_to_file(Embedder.load(str(folder / "model"), device="cpu"), sentences, folder / f"{length}.npz")
"""


@linux
@pytest.mark.parametrize("tokens", [100_000, 250_000])
def test_a_long_line_takes_no_more_memory_than_a_file_of_as_many_tokens(tokens, tmp_path):
    # Without compiled kernels the steps take minutes, so there are fewer then.
    tokens = tokens if library.load() else tokens // 4
    save_weights(lively(tiny(cells=32, projection=32, encoder_width=32)), tmp_path / "model")
    program = [sys.executable, "-c", MAKES_VECTORS, str(tmp_path), str(tokens)]
    line, file = peak_of([*program, str(tokens)]), peak_of([*program, "10"])
    assert open_embeddings(tmp_path / f"{tokens}.npz")[0].shape == (tokens, 64)
    assert line < 1.05 * file, f"{line / 1e6:.1f} MB for the line, {file / 1e6:.1f} MB for the file"
