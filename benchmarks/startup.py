"""From the start of a process to vectors on disk: `elmofire embed` of one sentence with a model of the `small` size.

Beside it, the bare interpreter, and `import numpy`, which nothing here can be faster than. Run: python benchmarks/startup.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import keep, spread

REPEATS = 15


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
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
            "embed to npz": embed("out.npz"),
            "embed to safetensors": embed("out.safetensors"),
            "embed to hdf5": embed("out.hdf5"),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(REPEATS):
            for name, command in cases.items():
                times[name].append(seconds(*command))
        for name, taken in times.items():
            keep("startup", case=name, seconds=spread(taken))


if __name__ == "__main__":
    main()
