"""Killed at any moment and started again, a file job loses no row, doubles none, and changes no bit."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from models import lively, tiny

from elmofire import open_embeddings, save_weights

# The command itself, with pieces small enough that there are many of them to be killed between and within.
PROGRAM = "import sys; from elmofire.embed import job; job._PIECE_TOKENS = 200; from elmofire.cli import main; main()"


@pytest.mark.parametrize(("suffix", "times"), [("hdf5", 20), ("npz", 3), ("safetensors", 3)])
def test_kills_leave_no_trace(tmp_path, suffix, times):
    save_weights(lively(tiny(cells=64, projection=32, encoder_width=32)), tmp_path / "model")
    text = tmp_path / "text.txt"
    words = [f"w{n}" for n in range(700)]
    rng = random.Random(11)
    text.write_text("".join(" ".join(rng.choices(words, k=rng.randint(0, 30))) + "\n" for _ in range(2000)))

    def command(output):
        arguments = [
            "embed",
            "-m",
            str(tmp_path / "model"),
            "--layers",
            "all",
            "--pretokenized",
            "-q",
            "-o",
            str(output),
            str(text),
        ]
        return [sys.executable, "-c", PROGRAM, *arguments]

    subprocess.run(command(tmp_path / f"whole.{suffix}"), check=True)

    output, kills = tmp_path / f"killed.{suffix}", 0
    for _ in range(6 * times):
        if kills == times:
            break
        process = subprocess.Popen(command(output))
        time.sleep(rng.uniform(0.1, 1.2))  # from before its first piece to its last
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        if output.exists():
            output.unlink()  # it got through: once more from the start
    assert kills == times
    subprocess.run(command(output), check=True)

    found, expected = open_embeddings(output), open_embeddings(tmp_path / f"whole.{suffix}")
    assert len(found) == len(expected) == 2000
    for number in range(2000):
        assert found.tokens(number) == expected.tokens(number)
        np.testing.assert_array_equal(found[number], expected[number])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        ["model", "text.txt", output.name, f"whole.{suffix}"]
    )
