"""How long the original size (4096 cells, 512 projection) takes to load on the CPU engine, and how much memory.

Reading the file's bytes with a warm page cache is the yardstick; loads and reads alternate, each in a process of its own.
Run: python benchmarks/loading.py
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from records import keep, spread

REPEATS = 7

READ = """
import json, sys, time
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    data = file.read()
print(json.dumps({"seconds": time.perf_counter() - start}))
"""

LOAD = """
import json, sys, time
from elmofire import Embedder
import elmofire.formats.published.hdf5_2018, elmofire.formats.native, elmofire.engine  # code counted before, not with the model
def field(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
before = field("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is counted from here
start = time.perf_counter()
elmo = Embedder.load(sys.argv[1], device="cpu")
print(json.dumps({"seconds": time.perf_counter() - start, "peak": field("VmHWM") - before}))
"""


def run(program: str, path: Path, home: str) -> dict:
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ELMOFIRE_HOME": home},
    )
    return json.loads(found.stdout)


def measured(path: Path, file: Path, *, first: bool) -> list[tuple[float, dict]]:
    """Seconds of reading and what loading took, in turn; the first time, or with packed weights on disk."""
    pairs = []
    with tempfile.TemporaryDirectory() as kept:
        if not first:
            run(LOAD, path, kept)
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as fresh:
                home = fresh if first else kept
                pairs.append((run(READ, file, home)["seconds"], run(LOAD, path, home)))
    return pairs


def main() -> None:
    from elmofire import save_weights
    from elmofire.formats.config import BilmConfig
    from elmofire.formats.initial import initial_weights

    weights = initial_weights(BilmConfig(), seed=1)
    size = 4 * weights.config.parameters
    with tempfile.TemporaryDirectory() as folder:
        native, hdf5 = Path(folder, "native"), Path(folder, "hdf5")
        save_weights(weights, native, to="native")
        save_weights(weights, hdf5, to="hdf5")
        files = {native: native / "model.safetensors", hdf5: hdf5 / "weights.hdf5"}
        for (path, file), first in itertools.product(files.items(), (True, False)):
            run(READ, file, folder)
            pairs = measured(path, file, first=first)
            reads, loads = [read for read, _ in pairs], [load["seconds"] for _, load in pairs]
            keep(
                "loading",
                format=f"{path.name}, {'the first time' if first else 'later'}",
                weights_mb=round(size / 1e6, 1),
                load_seconds=spread(loads),
                read_seconds=spread(reads),
                load_over_read=spread([load / read for load, read in zip(loads, reads, strict=True)]),
                peak_memory_over_weights=spread([load["peak"] / size for _, load in pairs]),
            )


if __name__ == "__main__":
    main()
