"""One contender in a process of its own: it loads a model once, then does what it is told, a line of JSON for a line of JSON.

This file runs as a script, also by the Python of a peer's environment, so it imports nothing of elmofire but what the job names.
Times are taken here, around the call alone. Words are forgotten before each call: what is timed is never looked up.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

PEER_BATCH = 32  # sentences that AllenNLP runs at a time


class Elmofire:
    """An Embedder as users call it."""

    def __init__(self, job: dict) -> None:
        elmofire = importlib.import_module("elmofire")
        chosen = {key: job[key] for key in ("device", "precision", "threads")}
        self.elmo = elmofire.Embedder.load(job["model"], **chosen)
        self.engine = self.elmo.info()["engine"]

    def forget(self) -> None:
        self.elmo.clear_cache()

    def embed(self, sentences: list) -> list:
        return self.elmo.embed(sentences)

    def layers(self, sentences: list) -> list:
        return self.elmo.embed(sentences, layers="all")


class AllenNLP:
    """AllenNLP's `Elmo` in eval mode, one representation, batch after batch, each from the zero state."""

    def __init__(self, job: dict) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(job["threads"])
        module = importlib.import_module("allennlp.modules.elmo")
        files = [str(Path(job["model"], name)) for name in ("options.json", "weights.hdf5")]
        self.ids = module.batch_to_ids
        self.elmo = module.Elmo(*files, 1, dropout=0.0).eval()
        version = importlib.import_module("allennlp.version").VERSION
        self.engine = f"AllenNLP {version}, torch {self.torch.__version__}"

    def forget(self) -> None:
        """It remembers no words."""

    def embed(self, sentences: list) -> list:
        vectors = []
        for start in range(0, len(sentences), PEER_BATCH):
            batch = sentences[start : start + PEER_BATCH]
            self.elmo._elmo_lstm._elmo_lstm.reset_states()
            with self.torch.no_grad():
                output = self.elmo(self.ids(batch))["elmo_representations"][0].numpy()
            vectors += [output[row, : len(sentence)] for row, sentence in enumerate(batch)]
        return vectors

    def layers(self, sentences: list) -> list:
        bilm = self.elmo._elmo_lstm
        bilm._elmo_lstm.reset_states()
        with self.torch.no_grad():
            layers = self.torch.stack(bilm(self.ids(sentences))["activations"]).numpy()
        return [layers[:, row, 1 : len(sentence) + 1] for row, sentence in enumerate(sentences)]


LIBRARIES = {"elmofire": Elmofire, "allennlp": AllenNLP}


def timed(contender: "Elmofire | AllenNLP", sentences: list) -> "tuple[list, dict]":
    contender.forget()
    cpu, start = time.process_time(), time.perf_counter()
    vectors = contender.embed(sentences)
    seconds = time.perf_counter() - start
    return vectors, {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}


def answer(contender: "Elmofire | AllenNLP", order: dict) -> dict:
    """`embed` some sentences in one call, or their `layers`; the vectors go to the file `keep`, where one is named."""
    if order["do"] == "layers":
        vectors, taken = contender.layers(order["sentences"]), {}
    else:
        vectors, taken = timed(contender, order["sentences"])
    if order.get("keep"):
        importlib.import_module("numpy").savez(order["keep"], *vectors)
    return taken


def main() -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [
        entry for entry in sys.path if Path(entry or ".").resolve() != here
    ]  # our files are no modules of theirs
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def say(found: dict) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    contender = LIBRARIES[job["library"]](job)
    say({"engine": contender.engine})
    for line in sys.stdin:
        say(answer(contender, json.loads(line)))


if __name__ == "__main__":
    main()
