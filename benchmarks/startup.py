"""From the start of a process to `en-small` loaded on the CPU engine (the bar: half a second), to its first sentence, and to vectors on disk.

`load, nothing packed` is the first load on a machine, the others find the packed weights that it keeps. The files are those of `elmofire
embed` of one sentence with a model of the `small` size and no head. Beside them, the bare interpreter, and `import numpy`, which nothing
here can be faster than. Run: python benchmarks/startup.py
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import keep, spread

REPEATS = 15
LOAD = "from elmofire import Embedder; elmo = Embedder.load('en-small', device='cpu')"
FIRST = f"{LOAD}; elmo.embed(['Stick to the plan, and do not look back.'])"
NOTHING_PACKED = "en-small: load, nothing packed"


def seconds(*command: str, home: str) -> float:
    start = time.perf_counter()
    environment = {**os.environ, "ELMOFIRE_HOME": home}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    from elmofire import load_weights, save_weights

    with tempfile.TemporaryDirectory() as folder:
        model, text = Path(folder, "small"), Path(folder, "text.txt")
        save_weights(load_weights("random-small"), model)
        text.write_text("Stick to the plan, and don't look back.\n")

        def embed(output: str) -> tuple[str, ...]:
            return (
                "-m",
                "elmofire",
                "embed",
                "--quiet",
                "--model",
                str(model),
                "--output",
                str(Path(folder, output)),
                str(text),
            )

        cases = {
            "python": ("-c", "pass"),
            "import numpy": ("-c", "import numpy"),
            "elmofire --help": ("-m", "elmofire", "--help"),
            NOTHING_PACKED: ("-c", LOAD),
            "en-small: load": ("-c", LOAD),
            "en-small: load, first sentence": ("-c", FIRST),
            "embed to npz": embed("out.npz"),
            "embed to safetensors": embed("out.safetensors"),
            "embed to hdf5": embed("out.hdf5"),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for command in cases.values():  # packs what there is to pack
            seconds(*command, home=str(Path(folder, "home")))
        for repeat in range(REPEATS):
            for name, command in cases.items():
                home = f"bare-{repeat}" if name == NOTHING_PACKED else "home"
                times[name].append(seconds(*command, home=str(Path(folder, home))))
        for name, taken in times.items():
            keep("startup", case=name, seconds=spread(taken))


if __name__ == "__main__":
    main()
