"""Memory is what a batch needs, whatever the input; what is larger lies in files that have no name."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from models import lively, tiny

from elmofire import Embedder, open_embeddings, save_weights
from elmofire.embed import selection, writers
from elmofire.embed.job import embed_to_file
from elmofire.engine import spill
from elmofire.engine.compiled import library

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped, and how much memory is whose")


class TestRoom:
    @pytest.fixture(autouse=True)
    def a_folder_of_its_own(self, tmp_path, monkeypatch):
        self.folder = tmp_path
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(spill, "LIMIT_BYTES", 1000)

    def mapped(self):
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(self.folder) in line]

    @linux
    def test_beyond_the_limit_it_is_a_file_without_a_name_that_goes_with_the_array(self):
        assert spill.room((10, 25)).shape == (10, 25)
        assert not self.mapped()
        array = spill.room((10, 26))
        assert (array.shape, array.dtype, type(array)) == ((10, 26), np.float32, np.ndarray)
        numbers = np.arange(260, dtype=np.float32).reshape(10, 26)
        array[:] = numbers
        assert len(self.mapped()) == 1
        assert not list(self.folder.iterdir())
        row = array[3]
        del array
        np.testing.assert_array_equal(row, numbers[3])
        del row
        assert not self.mapped()

    @linux
    def test_a_disk_without_room_is_an_error_before_anything_is_written(self):
        program = (
            "import resource; from elmofire.engine import spill; "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); spill.room((100_000, 100))"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.returncode == 1
        assert "no room for 0.0 GB of vectors" in run.stderr
        assert "set TMPDIR" in run.stderr

    @pytest.mark.parametrize("layers", ["average", "all", "top", 0, [0.0, 1.0, 2.0]], ids=str)
    def test_vectors_are_the_same_in_files(self, layers, monkeypatch):
        sentences = [[f"w{n % 40}" for n in range(length)] for length in (300, 7, 0, 40)]
        elmo = Embedder(lively(tiny()), device="cpu")
        monkeypatch.setattr(spill, "LIMIT_BYTES", 1 << 30)
        expected = elmo.embed(sentences, layers=layers)
        monkeypatch.setattr(spill, "LIMIT_BYTES", 0)
        monkeypatch.setattr(selection, "_CHUNK_BYTES", 500)
        for found, wanted in zip(elmo.embed(sentences, layers=layers), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize("suffix", ["hdf5", "npz", "safetensors"])
    @pytest.mark.parametrize("layers", ["average", "all"])
    def test_files_written_in_chunks_are_the_same(self, suffix, layers, monkeypatch):
        sentences = [[f"w{n % 40}" for n in range(length)] for length in (300, 7, 0, 40)]
        elmo = Embedder(lively(tiny()), device="cpu")
        monkeypatch.setattr(writers, "_CHUNK_BYTES", 500)
        embed_to_file(elmo, sentences, self.folder / f"v.{suffix}", layers=layers, dtype="float16")
        found = open_embeddings(self.folder / f"v.{suffix}")
        for number, wanted in enumerate(elmo.embed(sentences, layers=layers)):
            np.testing.assert_array_equal(found[number], wanted.astype(np.float16))
            assert found.tokens(number) == sentences[number] or suffix == "hdf5"


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


@linux
def test_a_line_of_a_million_tokens_takes_no_more_memory_than_a_file_of_as_many(tmp_path):
    # Each layer of the line is 256 MB. Without compiled kernels its million steps take minutes, so it is shorter then.
    tokens = 1_000_000 if library.load() else 100_000
    save_weights(lively(tiny(cells=32, projection=32, encoder_width=32)), tmp_path / "model")
    rng = random.Random(5)
    ranks = range(1, 50_001)
    text = rng.choices([f"w{rank}" for rank in ranks], weights=[1 / rank for rank in ranks], k=tokens)
    (tmp_path / "line.txt").write_text(" ".join(text) + "\n")
    (tmp_path / "file.txt").write_text("".join(" ".join(text[n : n + 10]) + "\n" for n in range(0, tokens, 10)))

    def peak(name):
        output = tmp_path / f"{name}.npz"
        command = [sys.executable, "-m", "elmofire", "embed", "-m", str(tmp_path / "model"), "--pretokenized", "-q"]
        return peak_of([*command, "-o", str(output), str(tmp_path / f"{name}.txt")])

    line, file = peak("line"), peak("file")
    assert open_embeddings(tmp_path / "line.npz")[0].shape == (tokens, 64)
    # The line's tokens and their places are one list: 100 bytes each at most. Its vectors, 256 bytes a layer, are not in memory.
    assert line < file + 100 * tokens, f"{line / 1e6:.0f} MB for the line, {file / 1e6:.0f} MB for the file"
    assert line < 250e6
