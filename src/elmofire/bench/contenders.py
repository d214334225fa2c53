"""Who takes part in a benchmark of embedding: each a process that stays alive and is asked in turn."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from elmofire.bench import worker
from elmofire.errors import InputError
from elmofire.formats.weights import Array

Sentences = Sequence[Sequence[str]]
_LOUDEST = 2000  # characters of a failed process's last words


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What to run, and how. `instruction_set` is the CPU engine's: a name, `numpy`, or none for the best."""

    library: str = "elmofire"
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1
    instruction_set: str | None = None
    python: str = sys.executable

    @property
    def is_peer(self) -> bool:
        return self.library != "elmofire"

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        if self.is_peer:
            return f"{self.library}, {threads}"
        return f"{self.instruction_set or self.device} {self.precision}, {threads}"

    def environment(self) -> dict[str, str]:
        """Libraries of others (BLAS, OpenMP) read their threads from here, and only when they are loaded."""
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.threads))
        asked = {"ELMOFIRE_CPU": self.instruction_set} if self.instruction_set else {}
        return {**os.environ, **counts, **asked}


class Process:
    """A contender with its model loaded, or still loading: the first question waits for it."""

    def __init__(self, contender: Contender, model: Path | str, environment: Mapping[str, str] | None = None) -> None:
        self.contender = contender
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        try:
            self._process = subprocess.Popen(
                [contender.python, "-W", "ignore", worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                env={**contender.environment(), **(environment or {})},
            )
        except OSError as error:
            self._errors.close()
            raise InputError(
                f"{contender.python}: cannot be run: {error.strerror}", hint="--peer takes a Python"
            ) from None
        self._say({**asdict(contender), "model": str(model)})
        self._engine: str | None = None

    @property
    def engine(self) -> str:
        """What the library says that it runs on."""
        self._engine = self._engine or str(self._hear()["engine"])
        return self._engine

    def layers(self, sentences: Sentences) -> list[Array]:
        """All layers of each sentence, (L + 1, tokens, width)."""
        return self._vectors({"do": "layers", "sentences": sentences})

    def vectors(self, sentences: Sentences) -> list[Array]:
        """What the call that is timed returns."""
        return self._vectors({"do": "embed", "sentences": sentences})

    def timed(self, sentences: Sentences) -> dict[str, float]:
        """`seconds` and `cpu_seconds` of one call."""
        return self._ask({"do": "embed", "sentences": sentences})

    def _vectors(self, order: dict[str, Any]) -> list[Array]:
        with tempfile.TemporaryDirectory() as folder:
            self._ask({**order, "keep": f"{folder}/vectors.npz"})
            with np.load(f"{folder}/vectors.npz") as file:
                return [file[f"arr_{number}"] for number in range(len(order["sentences"]))]

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        _ = self.engine  # loaded
        self._say(order)
        return self._hear()

    def _say(self, order: dict[str, Any]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        return json.loads(line)

    def _died(self) -> InputError:
        """With the process's last words, which follow the indented lines of a traceback."""
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines() or ["without a word"]
        last = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
        return InputError(f"{self.contender}: the process ended: " + "\n".join(lines[last + 1 :])[-_LOUDEST:])

    def close(self) -> None:
        """End the process. It holds nothing that would be lost."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                stream.close()
        self._process.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
