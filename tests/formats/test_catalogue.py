"""Every entry of the catalogue is complete, names files that a loader expects, and is in the docs."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elmofire.formats.catalogue import FAMILIES, cache_folder, catalogue, catalogue_table, entry_named

DOCS = Path(__file__).parents[2] / "docs/reference/models.md"

each_entry = pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)

# ISO 639-1 where there is a code, else 639-3: those of ELMoForManyLangs by their number in the repository, from 136.
MANYLANGS = [
    "ar",
    "bg",
    "ca",
    "cs",
    "cu",
    "da",
    "de",
    "el",
    "en",
    "es",
    "et",
    "eu",
    "fa",
    "fi",
    "fr",
    "ga",
    "gl",
    "grc",
    "he",
    "hi",
    "hr",
    "hu",
    "id",
    "it",
    "ja",
    "ko",
    "la",
    "lv",
    "nl",
    "nb",
    "nn",
    "pl",
    "pt",
    "ro",
    "ru",
    "sk",
    "sl",
    "sv",
    "tr",
    "ug",
    "uk",
    "ur",
    "vi",
    "zh-Hant",
]


@each_entry
def test_an_entry_says_what_it_is_and_where_that_is_known_from(entry):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9.]+)*(/[a-z0-9]+([-.][a-z0-9]+)*)?", entry.name)
    assert re.fullmatch(r"([a-z]{2,3}(-Han[ts])?)?", entry.language)
    assert entry.language or "no language" in entry.note
    assert entry.family in FAMILIES
    assert entry.license
    assert entry.source
    assert entry.parameters >= 0
    assert entry.expected_size >= 0


@each_entry
def test_addresses_are_on_the_web_and_names_stay_in_the_folder(entry):
    for file in entry.files:
        assert re.fullmatch(r"[\w.-]+", file.name)
        assert file.urls
        for url in file.urls:
            parts = urlsplit(url)
            assert parts.scheme in ("http", "https")
            assert parts.hostname
            assert parts.path.strip("/")


@each_entry
def test_the_files_are_what_the_loader_of_the_family_takes(entry, tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOFIRE_HOME", str(tmp_path))
    names = {file.name for file in entry.files}
    if entry.family == "hdf5 2018" and len(names) > 1:
        assert (
            {"options.json", "weights.hdf5"}
            <= names
            <= {"options.json", "weights.hdf5", "softmax_weights.hdf5", "vocab.txt"}
        )
        assert entry.model == entry.folder == tmp_path / entry.name
    elif entry.family == "tf checkpoint" and len(names) > 1:
        assert {"options.json", "vocab.txt"} < names
        assert {name.rpartition(".")[2] for name in names if name.startswith("model.ckpt-")} == {
            "index",
            "data-00000-of-00001",
        }
        assert entry.model == entry.folder
    else:
        (name,) = names
        assert name.endswith((".zip", ".tar.gz", ".tar.bz2"))
        as_it_is = name.endswith(".zip") or entry.family == "allennlp archive"
        assert entry.model == entry.folder / (name if as_it_is else "unpacked")
        assert entry.tar == (None if as_it_is else name)
    assert not entry_named(entry.name).here


@each_entry
def test_a_checksum_has_a_source_and_the_length_of_its_kind(entry):
    for file in entry.files:
        algorithm, _, digest = file.digest.partition(":")
        assert bool(file.digest) == bool(file.digest_source)
        assert len(digest) == {"": 0, "md5": 32, "sha1": 40, "sha256": 64}[algorithm]


def test_names_are_unique():
    names = [entry.name for entry in catalogue()]
    assert len(set(names)) == len(names)


def test_no_folder_of_a_model_lies_in_that_of_another():
    names = {entry.name for entry in catalogue()}
    assert not any(name.rpartition("/")[0] in names for name in names)


def test_every_model_that_people_ask_for_is_there():
    asked = "small medium original original-lm original-5.5b pt pubmed small-tf medium-tf original-tf"
    names = {entry.name for entry in catalogue()}
    assert {f"allenai/{name}" for name in asked.split()} <= names
    assert {f"nlpl/{number}" for number in (195, 196, 210, 211, 212, 217, 218)} <= names
    assert {f"crosslingual/{language}" for language in ["de", "en", "es", "fr", "it", "pt", "sv"]} <= names
    assert {"german", "basque", "tamil", "seqvec", "google/elmo-3", "deeppavlov/ru-wiki"} <= names


def test_all_of_manylangs_is_there_with_its_numbers():
    entries = [entry for entry in catalogue() if entry.family == "manylangs"]
    numbered = {
        entry.files[0].name: entry.language for entry in entries if entry.name != "manylangs/chinese-simplified"
    }
    assert numbered == {f"{136 + k}.zip": language for k, language in enumerate(MANYLANGS)}
    assert len(entries) == 44 + 1
    for entry in entries[:-1]:
        number = entry.files[0].name.removesuffix(".zip")
        assert entry.files[0].urls[0] == f"http://vectors.nlpl.eu/repository/11/{number}.zip"
    assert entry_named("manylangs/old-church-slavonic").files[0].name == "140.zip"
    assert entry_named("manylangs/vietnamese").files[0].name == "178.zip"


def test_the_checksums_of_the_german_model_are_enforced():
    assert [file.digest for file in entry_named("german").files] == [
        "sha1:04afb8bc77acf5e65633ced2efc1e91d05332e89",
        "sha1:9084adab3eefaed4f07da7331217fcb873417add",
    ]


def test_the_head_comes_with_its_words():
    assert [file.name for file in entry_named("allenai/original").files] == ["options.json", "weights.hdf5"]
    assert {file.name for file in entry_named("allenai/original-lm").files} - {"options.json", "weights.hdf5"} == {
        "softmax_weights.hdf5",
        "vocab.txt",
    }


@pytest.mark.skipif(not DOCS.is_file(), reason="the docs are not beside the tests")
def test_the_page_of_the_docs_is_current():
    between = re.search(
        "<!-- catalogue -->\n\n(.*)\n<!-- end of catalogue -->", DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    assert between
    assert between[1] == catalogue_table()


def test_the_table_says_a_thing_once_that_holds_for_many():
    table = catalogue_table()
    assert table.count("UDPipe words of the CoNLL 2018 shared task") == 1
    rows = table.splitlines()
    assert sum(row.endswith("| as above |") and row.startswith("| `manylangs/") for row in rows) == len(MANYLANGS)
    for entry in catalogue():
        assert entry.source in table
    assert max(map(rows.count, rows)) <= 3  # blank lines


class TestCacheFolder:
    def test_the_user_chooses(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.delenv("ELMOFIRE_HOME", raising=False)
        assert cache_folder() == tmp_path / "xdg/elmofire"
        monkeypatch.setenv("ELMOFIRE_HOME", "~/models")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / "models"

    @pytest.mark.parametrize(
        ("platform", "expected"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")]
    )
    def test_each_system_has_its_place(self, monkeypatch, tmp_path, platform, expected):
        for variable in ("ELMOFIRE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr("sys.platform", platform)
        assert cache_folder() == tmp_path / expected / "elmofire"
