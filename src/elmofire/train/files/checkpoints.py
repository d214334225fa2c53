"""Checkpoints: all that a run needs to go on, in folders that appear whole or not at all.

RUN/checkpoints/00000500/state.safetensors  the tensors
                         checkpoint.json    the update, the loop's facts, and checksums of the tensors and of itself

One process writes. It may be killed at any moment: what has a number for its name is whole, and what is not begins with a dot.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from elmofire.errors import DataError, ElmofireError
from elmofire.formats.files import folder_written_aside, read_json_object
from elmofire.train.corpus.reader import digest

FORMAT = 2
TENSORS, FACTS = "state.safetensors", "checkpoint.json"
KEPT = 2
_NAME = re.compile(r"(\d{8,})(-again)?")


class Checkpoint(NamedTuple):
    """The state of a run after `update` updates."""

    update: int
    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run: the last two are kept."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._broken: set[Path] = set()

    def save(self, update: int, tensors: Mapping[str, torch.Tensor | NDArray[Any]], facts: dict[str, Any]) -> None:
        """Write what `newest` will give back; `facts` are JSON. When it returns, the disk has it."""
        facts = json.loads(json.dumps(facts))  # what is no JSON fails before anything is written
        self._tidy()
        plain = self.folder / f"{update:08}"
        place = plain.with_name(f"{plain.name}-again") if plain.exists() else plain
        with folder_written_aside(place, replaces=lambda _: False) as aside:
            save_file({name: _own_copy(value) for name, value in tensors.items()}, aside / TENSORS)
            file = {"bytes": (aside / TENSORS).stat().st_size, "blake2b": digest(aside / TENSORS)}
            content = {"format": FORMAT, "update": update, "facts": facts, "files": {TENSORS: file}}
            sealed = {**content, "blake2b": _seal(content)}
            (aside / FACTS).write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")
        for folder in (place, self.folder):  # before older ones go
            _sync_folder(folder)
        self._tidy()
        found = self._found()
        before = [folder for number, _, folder in found if number < update and folder not in self._broken]
        for _, _, folder in found:  # later ones too: were they whole, the run would have gone on from them
            if folder not in (plain, *before[: KEPT - 1]):
                remove_folder(folder)
        self._broken.clear()

    def newest(self) -> Checkpoint | None:
        """The last one that is whole, its tensors in main memory; what is broken is left out with a warning. None: there is none yet."""
        broken: list[str] = []
        for _, _, folder in self._found():
            try:
                checkpoint = _read(folder)
            except (ElmofireError, SafetensorError, OSError) as error:
                broken.append(f"{folder}: is broken: {error}")
                self._broken.add(folder)
                continue
            for problem in broken:
                warnings.warn(f"{problem}; going on from {folder}", stacklevel=2)
            return checkpoint
        if broken:
            listed = "\n".join(f"  - {problem}" for problem in broken)
            raise DataError(
                f"{self.folder}: no checkpoint is whole\n{listed}",
                hint=f"put back a copy of one of them, or remove {self.folder} to start the run anew",
            )
        return None

    def _found(self) -> list[tuple[int, bool, Path]]:
        """Updates and folders, the newest first; one that was saved again comes before the one it replaces."""
        entries = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        matches = [(match, entry) for entry in entries if (match := _NAME.fullmatch(entry.name))]
        return sorted(((int(match[1]), match[2] is not None, entry) for match, entry in matches), reverse=True)

    def _tidy(self) -> None:
        """Remove what killed writers have left, and give a checkpoint that was saved again its own name."""
        for stray in list(self.folder.glob(".[0-9]*")):
            shutil.rmtree(stray)
        for number, again, folder in self._found():
            if again:
                plain = folder.with_name(f"{number:08}")
                if plain.exists():
                    remove_folder(plain)
                folder.rename(plain)


def remove_folder(folder: Path) -> None:
    """Remove a folder such that no part of it is left under its name, even if killed meanwhile."""
    going = folder.with_name(f".{folder.name}.going")
    folder.rename(going)
    shutil.rmtree(going)


def _read(folder: Path) -> Checkpoint:
    sealed = read_json_object(folder / FACTS)
    content = {key: value for key, value in sealed.items() if key != "blake2b"}
    if sealed.get("blake2b") != _seal(content):
        raise DataError(f"{FACTS} has another checksum than it says")
    if content["format"] != FORMAT:
        raise DataError(
            f"{FACTS} has format {content['format']}, but {FORMAT} is known here; it was made by another version of elmofire"
        )
    file, said = folder / TENSORS, content["files"][TENSORS]
    if file.stat().st_size != said["bytes"]:
        raise DataError(f"{TENSORS} has {file.stat().st_size:,} bytes, but should have {said['bytes']:,}")
    if digest(file) != said["blake2b"]:
        raise DataError(f"{TENSORS} has another checksum than {FACTS} says")
    return Checkpoint(content["update"], load_file(file), content["facts"])


def _seal(content: dict[str, Any]) -> str:
    return blake2b(json.dumps(content).encode(), digest_size=32).hexdigest()


def _own_copy(value: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    """In main memory, one number after the other, and shared with nothing, as the format wants it."""
    tensor = torch.tensor(value) if isinstance(value, np.ndarray) else value.detach()
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.cpu().contiguous()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
