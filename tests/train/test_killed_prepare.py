"""Killed at any moment and started again, a preparation gives the bytes of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from train.slow_corpus import contents

# The command itself, with blocks and shards small enough that there are many of them to be killed between and within.
PROGRAM = (
    "from elmofire.train.corpus import blocks, shards; blocks.BLOCK_BYTES = 20_000; shards.SHARD_TOKENS = 20_000;"
    "from elmofire.cli import main; main()"
)


@pytest.mark.parametrize(("processes", "kills"), [(1, 8), (2, 8)])
def test_kills_leave_no_trace(tmp_path, processes, kills):
    rng = random.Random(9)
    words = [f"w{n}" for n in range(3000)]
    for number in range(3):
        lines = [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(4000)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    (tmp_path / "eval.txt").write_text(" ".join(rng.choices(words, k=20)))

    def command(output):
        options = ["--documents", "blocks", "--held-out", "5%", "--unique", "sentences", "--pretokenized", "-q"]
        options += ["--check-against", str(tmp_path / "eval.txt"), "--processes", str(processes)]
        return [sys.executable, "-c", PROGRAM, "prepare", str(tmp_path / "[0-9].txt"), *options, "-o", str(output)]

    start = time.monotonic()
    subprocess.run(command(tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - start
    output, killed = tmp_path / "killed", 0
    for _ in range(kills):
        process = subprocess.Popen(command(output), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 0.7) * whole)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed
    subprocess.run(command(output), check=True, stdout=subprocess.DEVNULL)
    assert contents(output) == contents(tmp_path / "whole")
    left = {file.name for file in tmp_path.iterdir()} - {"0.txt", "1.txt", "2.txt", "eval.txt"}
    assert left == {"whole", "killed"}


@pytest.mark.parametrize("blocks", [1, 4, 9, 20])
def test_an_interrupted_run_says_so_and_how_to_go_on(tmp_path, blocks):
    (tmp_path / "text.txt").write_text("".join(f"word{n % 977} word{n}\n" for n in range(60_000)))
    command = [sys.executable, "-c", PROGRAM, "prepare", str(tmp_path / "text.txt"), "--processes", "2", "-o"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "c")], stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    while not (tmp_path / f"c.parts/blocks/{blocks:06}.npz").exists():
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.split("\n")[0] == f"{tmp_path / 'c'}: run the same command again to resume"
    assert said.split()[-1] == "interrupted"
    subprocess.run([*command, str(tmp_path / "c")], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*command, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "c") == contents(tmp_path / "whole")


def test_text_that_has_changed_is_read_anew(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"old{n}\n" for n in range(100_000)))
    command = [sys.executable, "-c", PROGRAM, "prepare", str(text), "-q", "--processes", "1", "-o", str(tmp_path / "c")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (tmp_path / "c.parts/blocks/000003.npz").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    text.write_text("new\n")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "c/words.utf8").read_bytes() == b"<S></S><UNK>new"
