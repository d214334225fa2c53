"""From the start of a process to vectors on disk; for every model in the package, to the model loaded on the CPU engine, and its first sentence.

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
NOTHING_PACKED = "load, nothing packed"


def loading(model: str) -> dict[str, tuple[str, ...]]:
    """The cases of one model by its name."""
    load = f"from elmofire import Embedder; elmo = Embedder.load({model!r}, device='cpu')"
    first = f"{load}; elmo.embed(['Stick to the plan, and do not look back.'])"
    return {
        f"{model}: {NOTHING_PACKED}": ("-c", load),
        f"{model}: load": ("-c", load),
        f"{model}: load, first sentence": ("-c", first),
    }


def seconds(*command: str, home: str) -> float:
    start = time.perf_counter()
    environment = {**os.environ, "ELMOFIRE_HOME": home}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    from elmofire import load_weights, save_weights
    from elmofire.formats.names import packaged_models

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
            **{case: command for name in packaged_models() for case, command in loading(name).items()},
            "embed to npz": embed("out.npz"),
            "embed to safetensors": embed("out.safetensors"),
            "embed to hdf5": embed("out.hdf5"),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for command in cases.values():  # packs what there is to pack
            seconds(*command, home=str(Path(folder, "home")))
        for repeat in range(REPEATS):
            for name, command in cases.items():
                home = f"bare-{repeat}" if name.endswith(NOTHING_PACKED) else "home"
                times[name].append(seconds(*command, home=str(Path(folder, home))))
        for name, taken in times.items():
            keep("startup", case=name, seconds=spread(taken))


if __name__ == "__main__":
    main()
