"""The published models that load by name: data in catalogue.toml, and where their files are kept on this machine."""

import os
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from elmofire.errors import ModelError

FAMILIES = {  # what the files hold -> whether a tar file is read as it is
    "hdf5 2018": False,
    "manylangs": False,
    "tf checkpoint": False,
    "tf-hub": False,
    "allennlp archive": True,
}

_TAR_ENDINGS = (".tar.gz", ".tgz", ".tar.bz2")
_SAID_ONCE = 5  # models of which the same is known


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a model: what it is called here, and where it is published."""

    name: str
    urls: tuple[str, ...]  # mirrors, tried in this order
    digest: str = ""  # "algorithm:hex", where a source can be cited
    digest_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published model. What no source states is empty, 0 or "not stated"."""

    name: str
    language: str  # BCP 47; "" where the text is no language
    family: str
    files: tuple[RemoteFile, ...]
    license: str
    source: str  # where these facts come from
    parameters: int = 0
    size: int = 0  # bytes to download
    tokenization: str = ""
    note: str = ""

    @property
    def expected_size(self) -> int:
        """Bytes to download: as stated, else four a parameter where the files hold nothing but the biLM; 0: not known."""
        lone = self.family == "hdf5 2018" and all(file.name != "softmax_weights.hdf5" for file in self.files)
        return self.size or (4 * self.parameters if lone else 0)

    @property
    def folder(self) -> Path:
        """Where its files are, or would be."""
        return cache_folder() / self.name

    @property
    def tar(self) -> str | None:
        """The file that has to be unpacked, if there is one."""
        alone = self.files[0].name if len(self.files) == 1 else ""
        return alone if alone.endswith(_TAR_ENDINGS) and not FAMILIES[self.family] else None

    @property
    def unpacked(self) -> Path:
        """Where that file's contents go."""
        return self.folder / "unpacked"

    @property
    def model(self) -> Path:
        """What to load once the files are here: their folder, or the archive that is read as it is."""
        if self.tar:
            return _without_wrapping(self.unpacked)
        alone = self.files[0].name if len(self.files) == 1 else ""
        return self.folder / alone if alone.endswith((".zip", *_TAR_ENDINGS)) else self.folder

    @property
    def missing(self) -> tuple[RemoteFile, ...]:
        """The files that are not on this machine."""
        if self.tar and self.unpacked.is_dir():
            return ()  # the archive itself is not needed again
        return tuple(file for file in self.files if not (self.folder / file.name).is_file())

    @property
    def here(self) -> bool:
        return not self.missing and (self.tar is None or self.unpacked.is_dir())


def _without_wrapping(folder: Path) -> Path:
    """Many archives hold one folder that holds the files."""
    inside = list(folder.iterdir()) if folder.is_dir() else []
    return _without_wrapping(inside[0]) if len(inside) == 1 and inside[0].is_dir() else folder


def cache_folder() -> Path:
    """Where downloaded models are kept: ELMOFIRE_HOME, or the user's folder for caches."""
    if home := os.environ.get("ELMOFIRE_HOME"):
        return Path(home).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "elmofire"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "elmofire"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "elmofire"
    return _home() / ".cache" / "elmofire"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ModelError("there is no home folder to keep models in", hint="ELMOFIRE_HOME names a folder") from None


@cache
def catalogue() -> list[Entry]:
    """Every published model with a known address.

    >>> [entry.name for entry in catalogue() if entry.language == "cu"]
    ['manylangs/old-church-slavonic']
    """
    tables = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    return [_entry({**group, **model}) for group in tables["group"] for model in group["model"]]


def entry_named(name: str) -> Entry | None:
    """The catalogue's model of that name."""
    return next((entry for entry in catalogue() if entry.name == name), None)


def _entry(table: dict[str, Any]) -> Entry:
    del table["model"]
    mirrors = table.pop("mirrors", [])
    digests = table.pop("digests", {})
    digest_source = table.pop("digest_source", "")
    files = tuple(
        RemoteFile(
            name=name,
            urls=(path,) if "://" in path else tuple(mirror + path for mirror in mirrors),
            digest=digests.get(name, ""),
            digest_source=digest_source if name in digests else "",
        )
        for name, path in table.pop("files").items()
    )
    return Entry(files=files, **table)


def catalogue_table() -> str:
    """The catalogue in Markdown, as docs/reference/models.md has it: what many models of an owner share is said once, above the table."""
    known = {entry.name: _known(entry) for entry in catalogue()}
    shared = Counter((name.partition("/")[0], facts) for name, facts in known.items())
    above = {key for key, times in shared.items() if times >= _SAID_ONCE}
    lines = [
        'Where a row says "as above":',
        "",
        *[f"- `{owner}/`: {facts}" for owner, facts in shared if (owner, facts) in above],
        "",
        "| name | language | family | parameters | license | what is known |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in catalogue():
        parameters = f"{entry.parameters / 1e6:.1f}M" if entry.parameters else ""
        facts = known[entry.name]
        told = "as above" if (entry.name.partition("/")[0], facts) in above else facts
        lines.append(
            f"| `{entry.name}` | {entry.language} | {entry.family} | {parameters} | {entry.license} | {told} |"
        )
    return "\n".join(lines) + "\n"


def _known(entry: Entry) -> str:
    facts = [entry.note, f"tokens: {entry.tokenization}" if entry.tokenization else "", f"source: {entry.source}"]
    return "; ".join(fact for fact in facts if fact)
