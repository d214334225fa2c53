"""Where the CPU engine spends its time: python benchmarks/engine_profile.py

One thread, lively random weights, sentences of UD English where it is at hand: a corpus call, and one sentence at a time. Every call of a
compiled kernel is timed; what is left is numpy and Python. The least of REPEATS counts of each part.
"""

import time
from collections import Counter
from collections.abc import Callable

from embed import SEED, text
from records import keep

from elmofire import Embedder
from elmofire.bench.models import lively, sized
from elmofire.embed.cache import VectorCache
from elmofire.engine import compiled
from elmofire.engine.compiled.packing import PRECISIONS

REPEATS = 3
SENTENCES, SINGLES = 200, 20
SPELLING, ENCODER, STEPS, REST = "characters", "the rest of the encoder", "LSTMs", "numpy and Python"


class Timed:
    """The kernels of a library, with the seconds of each part."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, kernels: compiled.Kernels) -> None:
        """Time every call."""
        for name, part in (("multiply", ENCODER), ("run", STEPS), ("_spell", SPELLING)):
            kernel = getattr(kernels, name)
            setattr(kernels, name, kernel._replace(run=self._timed(kernel.run, part)))
        kernels._highway = self._timed(kernels._highway, ENCODER)

    def _timed(self, call: Callable, part: str) -> Callable:
        def timed(*arguments: object) -> object:
            began = time.perf_counter()
            result = call(*arguments)
            self.seconds[part] += time.perf_counter() - began
            return result

        return timed


def profile(size: str, precision: str, calls: dict[str, list[list[list[str]]]]) -> None:
    """All calls with one model."""
    timed, made = Timed(), []
    plain = compiled.Kernels.__init__

    def watched(self: compiled.Kernels, *given: object) -> None:
        plain(self, *given)
        made.append(self)

    compiled.Kernels.__init__ = watched
    try:
        weights = lively(sized(size), seed=SEED)
        elmo = Embedder(weights, device="cpu", precision=precision, threads=1)
    finally:
        compiled.Kernels.__init__ = plain
    timed.watch(made[-1])
    for case, batches in calls.items():
        tokens, best = sum(len(sentence) for batch in batches for sentence in batch), None
        for _ in range(REPEATS):
            elmo._cache = VectorCache(0)  # words are never looked up
            timed.seconds.clear()
            began = time.perf_counter()
            for batch in batches:
                elmo.embed(batch)
            total = time.perf_counter() - began
            found = {**timed.seconds, REST: total - sum(timed.seconds.values())}
            best = found if best is None or total < sum(best.values()) else best
        assert best is not None
        milliseconds = {part: round(1e3 * best[part], 3) for part in (SPELLING, ENCODER, STEPS, REST)}
        keep("engine_profile", size=size, precision=precision, case=case, kernels=made[-1].name, tokens=tokens, seed=SEED, repeats=REPEATS, milliseconds=milliseconds)  # fmt: skip


def main() -> None:
    what, corpus, singles = text()
    print(what)
    calls = {"a corpus call": [corpus[:SENTENCES]], "one sentence at a time": [[one] for one in singles[:SINGLES]]}
    for size in ("small", "original"):
        for precision in PRECISIONS:
            profile(size, precision, calls)


if __name__ == "__main__":
    main()
