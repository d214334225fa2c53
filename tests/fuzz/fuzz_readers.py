"""Coverage-guided fuzzing of everything that reads files from outside (atheris, libFuzzer): only errors of ours may come out.

    python tests/fuzz/fuzz_readers.py TARGET SECONDS      one of the targets below, from seeds that it writes itself
    python tests/fuzz/fuzz_readers.py TARGET CRASH_FILE   again what a run has found

Not collected by pytest. `pip install atheris` into an environment of its own, beside elmofire's base dependencies.
"""

import gzip
import io
import os
import sys
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
FIXTURES = Path(os.environ.get("ELMOFIRE_SHARED") or Path(__file__).parents[3] / "shared") / "fixtures"

with atheris.instrument_imports(include=["elmofire"]):
    import numpy as np

    from elmofire.errors import ElmofireError
    from elmofire.formats import load_weights, native, save_weights, tensors  # noqa: F401
    from elmofire.formats.config import BilmConfig, EncoderConfig
    from elmofire.formats.initial import initial_weights
    from elmofire.formats.published import hdf5_2018, zips  # noqa: F401
    from elmofire.formats.published.from_tensorflow import bundle, tf1  # noqa: F401
    from elmofire.formats.published.from_torch import allennlp, manylangs  # noqa: F401
    from elmofire.text.readers import read_sentences
    from elmofire.text.vocabulary import Vocabulary, read_vocabulary

WORDS = Vocabulary(["<S>", "</S>", "<UNK>", "the"])
CONFIG = BilmConfig(
    encoder=EncoderConfig(width=2, filters=((1, 2), (2, 1)), character_dim=1, max_characters=5, highways=1),
    cells=3,
    projection=2,
    head=len(WORDS),
)


def model(to: str) -> Path:
    folder = FOLDER / to
    if not folder.exists():
        save_weights(initial_weights(CONFIG, seed=1, vocabulary=WORDS), folder, to=to)
    return folder


def load_all(what) -> None:
    weights = load_weights(what)
    for name in weights.arrays:
        np.sum(weights.arrays[name])


def fuzz_file(to: str, name: str):
    """A whole model, one of whose files is the fuzzer's."""
    folder = model(to)
    whole = (folder / name).read_bytes()

    def run(data: bytes) -> None:
        (folder / name).write_bytes(data)
        load_all(folder)

    return run, [whole]


def fuzz_state_dict():
    """A torch file in either layout, as AllenNLP's weights.th."""
    path = FOLDER / "weights.th"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        load_all(path)

    return run, _torch_seeds()


def _torch_seeds() -> list[bytes]:
    seeds = [file.read_bytes() for file in FIXTURES.glob("efml_toy/*/*.pkl")]
    archive = FIXTURES / "allennlp_tagger_archive/model.tar.gz"
    if archive.is_file():
        with tarfile.open(archive) as tar:
            seeds += [tar.extractfile(member).read() for member in tar if member.name.endswith(".th")]
    return seeds


def fuzz_manylangs(name: str):
    shared = FIXTURES / "efml_toy/word_char"
    folder = FOLDER / "manylangs"
    folder.mkdir(exist_ok=True)
    for file in shared.iterdir():
        if file.suffix != ".hdf5":
            (folder / file.name).write_bytes(file.read_bytes())

    def run(data: bytes) -> None:
        (folder / name).write_bytes(data)
        load_all(folder)

    return run, [(shared / name).read_bytes()]


def fuzz_tar():
    """An archive's inside: gzip's own checksum would stop every change."""
    path = FOLDER / "model.tar.gz"

    def run(data: bytes) -> None:
        path.write_bytes(gzip.compress(data, compresslevel=0))
        load_all(path)

    seed = io.BytesIO()
    with tarfile.open(fileobj=seed, mode="w") as tar:
        for name, data in (("config.json", b"{}"), ("weights.th", _torch_seeds()[0])):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return run, [seed.getvalue()]


def fuzz_zip():
    path = FOLDER / "model.zip"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        load_all(path)

    seeds = []
    for to in ("hdf5", "native"):
        seed = io.BytesIO()
        with zipfile.ZipFile(seed, "w") as archive:
            for file in model(to).iterdir():
                archive.write(file, "model.hdf5" if file.name == "weights.hdf5" else file.name)
        seeds.append(seed.getvalue())
    return run, seeds


def fuzz_bundle():
    """A checkpoint's index, with checksums taken as right: they would stop every change."""
    shared = FIXTURES / "tf_checkpoint"
    folder = FOLDER / "checkpoint"
    folder.mkdir(exist_ok=True)
    for file in shared.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    index = next(folder.glob("*.index"))

    class Right:
        """Equal to every checksum."""

        def __ne__(self, other: object) -> bool:
            return False

    bundle.masked = lambda _checksum: Right()

    def run(data: bytes) -> None:
        index.write_bytes(data)
        load_all(folder)

    return run, [index.read_bytes()]


def fuzz_vocabulary():
    path = FOLDER / "vocab.txt"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read_vocabulary(path)

    return run, ["<S>\n</S>\n<UNK>\nthe\né\n!!!MAXTERMID\nthe\n".encode()]


def fuzz_text():
    """All input formats: the first byte says which."""
    formats = ["text", "conllu", "jsonl"]

    def run(data: bytes) -> None:
        path = FOLDER / "text"
        path.write_bytes(data[1:])
        for _ in read_sentences(str(path), format=formats[data[0] % 3 if data else 0]):
            pass

    rows = b"# text\n1\tDo\t_\t_\t_\t_\t_\t_\t_\t_\n2-3\tn't\t_\n\n"
    return run, [b"\x00a b\n\xc3\xa9\n", b"\x01" + rows, b'\x02{"tokens": ["a"]}\n"x"\n["y"]\n']


TARGETS = {
    "native-config": lambda: fuzz_file("native", "config.json"),
    "native-tensors": lambda: fuzz_file("native", "model.safetensors"),
    "hdf5-options": lambda: fuzz_file("hdf5", "options.json"),
    "hdf5-weights": lambda: fuzz_file("hdf5", "weights.hdf5"),
    "torch-pickles": fuzz_state_dict,
    "manylangs-config": lambda: fuzz_manylangs("cnn_toy.json"),
    "manylangs-characters": lambda: fuzz_manylangs("char.dic"),
    "tar": fuzz_tar,
    "zip": fuzz_zip,
    "tf1-index": fuzz_bundle,
    "vocabulary": fuzz_vocabulary,
    "text": fuzz_text,
}


def main() -> None:
    target, what = sys.argv[1:3]
    run, seeds = TARGETS[target]()
    warnings.simplefilter("ignore")

    def guarded(data: bytes) -> None:
        try:
            run(data)
        except ElmofireError as error:
            if not str(error):
                raise RuntimeError("an error that says nothing") from error

    if not what.isdigit():
        guarded(Path(what).read_bytes())
        return
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    limits = ["-rss_limit_mb=3000", "-timeout=20", f"-max_len={4 * max(map(len, seeds))}"]
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={what}", f"-artifact_prefix={target}-", *limits], guarded
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
