"""`elmofire models`: the list, and fetching from a server on loopback."""

import json
import os
import pty
import subprocess
import sys

import pytest
from formats.site import (
    Page,
    answer,
    dropping,
    entry_of,
    make_quiet_surroundings,
    model_files,
    properly,
    running_site,
)
from models import lively, tiny

from elmofire import save_weights
from elmofire.formats import catalogue, names


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    make_quiet_surroundings(monkeypatch, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def site():
    with running_site() as site:
        yield site


@pytest.fixture
def publish(site, tmp_path, monkeypatch):
    def publish(*behaviors, **facts):
        entry = entry_of(site, model_files(tmp_path / "published"), *behaviors, **facts)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [entry])
        return entry

    return publish


class TestList:
    def test_everything_is_listed_and_fits_a_terminal(self, run):
        code, out, err = run("models")
        assert (code, err) == (0, "")
        header, *lines = out.splitlines()
        assert header.split() == ["name", "language", "family", "size", "license", "here"]
        listed = [line.split()[0] for line in lines]
        assert listed == [*names.packaged_models(), *(entry.name for entry in catalogue.catalogue())]
        assert max(map(len, out.splitlines())) <= 110
        assert {line[header.index("here") :] for line in lines} <= {"yes", "no"}
        (original,) = [line for line in lines if line.startswith("allenai/original ")]
        assert original.split()[1:] == ["en", "hdf5", "2018", "374", "MB", "no", "restrictions", "no"]
        (small,) = [line for line in lines if line.startswith("allenai/small ")]
        assert " ~54 MB " in small

    @pytest.mark.parametrize(
        ("language", "expected"),
        [
            ("cu", ["manylangs/old-church-slavonic"]),
            ("zh", ["manylangs/chinese-traditional", "manylangs/chinese-simplified"]),
            ("ZH_hant", ["manylangs/chinese-traditional"]),
            ("nb", ["manylangs/norwegian-bokmal"]),
            ("eu", ["manylangs/basque", "basque"]),
        ],
    )
    def test_a_language_is_chosen_by_its_code(self, run, language, expected):
        _, out, _ = run("models", "--language", language)
        assert [line.split()[0] for line in out.splitlines()[1:]] == expected

    def test_norwegian_is_both_ways_of_writing_it(self, run):
        _, out, _ = run("models", "--language", "no")
        assert {line.split()[1] for line in out.splitlines()[1:]} == {"no", "nb", "nn"}

    def test_a_language_without_models_says_which_there_are(self, run):
        code, out, err = run("models", "--language", "tlh")
        assert (code, out) == (2, "")
        assert "error: no model for the language 'tlh'\nhint: there are models for ar, bg, " in err

    def test_programs_get_all_that_is_known(self, run, home):
        _, out, _ = run("models", "--json", "--language", "ta")
        (tamil,) = json.loads(out)["models"]
        assert tamil["files"]["weights.hdf5"] == ["https://schweter.eu/cloud/ta-elmo/weights.hdf5"]
        assert (tamil["here"], tamil["size"], tamil["path"]) == (False, None, str(home / "tamil"))

    def test_what_is_here_is_marked_with_its_true_size(self, run, publish, home):
        publish()
        assert run("models")[1].splitlines()[-1].split()[-1] == "no"
        run("models", "get", "test/tiny")
        (row,) = json.loads(run("models", "--json", "--language", "en")[1])["models"][-1:]
        assert row["here"] is True
        assert row["size"] == sum(file.stat().st_size for file in (home / "test/tiny").iterdir())
        assert run("models")[1].splitlines()[-1].split()[-1] == "yes"

    def test_a_model_in_the_package_is_here(self, run, monkeypatch, tmp_path):
        save_weights(lively(tiny()), tmp_path / "models/en-tiny")
        monkeypatch.setattr(names, "_PACKAGED", tmp_path / "models")
        first = run("models", "--language", "en")[1].splitlines()[1].split()
        assert (first[0], first[1], first[2], first[-1]) == ("en-tiny", "en", "native", "yes")


class TestGet:
    def test_the_path_goes_to_stdout_and_progress_to_stderr(self, run, publish, home):
        publish()
        code, out, err = run("models", "get", "test/tiny")
        assert (code, out) == (0, f"{home / 'test/tiny'}\n")
        assert "weights.hdf5: 0.1 of 0.1 MB" in err
        assert run("models", "get", "test/tiny")[:2] == (0, out)

    def test_quiet_is_quiet(self, run, publish):
        publish()
        assert run("models", "get", "test/tiny", "--quiet")[2] == ""

    def test_a_failure_is_one_error_and_the_same_line_goes_on(self, run, publish, site, home, monkeypatch):
        monkeypatch.setattr("elmofire.formats.catalogue.downloads.ATTEMPTS", 1)
        publish(dropping(0.5), answer(503), properly)
        code, out, err = run("models", "get", "test/tiny", "--quiet")
        assert (code, out) == (2, "")
        assert err.startswith("error: test/tiny: weights.hdf5 cannot be fetched: ")
        assert "Traceback" not in err
        assert run("models", "get", "test/tiny", "--quiet")[0] == 0
        assert "Range" in site.pages["/test/tiny/weights.hdf5"].asked[-1]

    def test_an_unknown_name_suggests_one(self, run):
        code, _, err = run("models", "get", "manylangs/slovenian")
        assert code == 2
        assert "did you mean manylangs/" in err

    def test_what_is_built_in_needs_no_fetching(self, run):
        code, out, err = run("models", "get", "random-small")
        assert (code, out) == (2, "")
        assert (
            err
            == "error: random-small: is built in and has no files to fetch\nhint: it loads as it is: --model random-small\n"
        )

    def test_offline_the_error_says_what_to_put_where(self, run, home, monkeypatch):
        monkeypatch.setenv("ELMOFIRE_OFFLINE", "1")
        code, _, err = run("models", "get", "basque")
        assert code == 2
        assert f"  https://schweter.eu/cloud/eu-elmo/weights.hdf5\n    -> {home / 'basque/weights.hdf5'}\n" in err

    def test_a_wrong_file_exits_with_2(self, run, publish, site):
        publish()
        site.pages["/test/tiny/weights.hdf5"] = Page(b"something else")
        code, _, err = run("models", "get", "test/tiny", "-q")
        assert code == 2
        assert "the files came whole, but do not load" in err


def test_other_commands_take_the_names_too(run, publish):
    publish()
    code, out, _ = run("info", "test/tiny", "--json")
    assert code == 0
    assert json.loads(out)["parameters"] > 0


@pytest.mark.parametrize(
    "command", [["embed"], ["bench", "embed", "--engine", "numpy", "--sentences", "0", "--singles", "2"]], ids=" ".join
)
def test_a_model_that_is_fetched_by_the_way_is_quiet_too(run, publish, tmp_path, command):
    publish()
    (tmp_path / "text.txt").write_text("Go on.\nWhy?\n")
    given = ["--model", "test/tiny", *([] if "bench" in command else [tmp_path / "text.txt"])]
    code, out, err = run(*command, *given, "--quiet")
    assert (code, err) == (0, "")
    assert out


def test_a_language_model_that_is_fetched_by_the_way_is_quiet_too(run, publish, tmp_path):
    publish()
    (tmp_path / "text.txt").write_text("Go on.\n")
    for command in ("perplexity", "score"):
        err = run(command, "--model", "test/tiny", "--quiet", tmp_path / "text.txt")[2]
        assert "MB" not in err


def test_in_a_terminal_one_line_moves_and_goes():
    program = (
        "import time\n"
        "from elmofire.formats.catalogue.transfers import TransferLine\n"
        "with TransferLine() as line:\n"
        "    line('weights.hdf5', 10_000_000, 374_000_000)\n"
        "    time.sleep(0.3)\n"
        "    line('weights.hdf5', 192_000_000, 374_000_000)\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode().split("\r")
    os.close(ours)
    assert shown[1] == "weights.hdf5: 10.0 of 374.0 MB"
    assert shown[2].startswith("weights.hdf5: 192.0 of 374.0 MB, ")
    assert shown[2].endswith(" MB/s, 51%, 0:00 left")
    assert shown[3].strip() == shown[4] == ""
