"""Downloads from a real server that is slow, breaks off, lies, changes its mind, or sends something else."""

import hashlib
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from formats.site import (
    Page,
    answer,
    dropping,
    entry_of,
    ignoring_if_range,
    make_quiet_surroundings,
    model_files,
    properly,
    running_site,
    slowly,
    stalling,
    without_ranges,
)
from models import lively, tiny

from elmofire import Embedder, ModelError, load_weights, save_weights
from elmofire.formats import catalogue
from elmofire.formats.catalogue import downloads, unpacking
from elmofire.formats.catalogue.fetch import fetch

WEIGHTS = "/test/tiny/weights.hdf5"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    make_quiet_surroundings(monkeypatch, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def site():
    with running_site() as site:
        yield site


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return model_files(tmp_path_factory.mktemp("published") / "model")


@pytest.fixture
def publish(site, files, monkeypatch):
    """Put the tiny model on the site and into the catalogue; behaviors are those of the weight file."""

    def publish(*behaviors, files=files, **facts):
        entry = entry_of(site, files, *behaviors, **facts)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [entry])
        return entry

    return publish


def held(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} if folder.is_dir() else set()


def assert_complete(home, files):
    folder = home / "test/tiny"
    assert held(folder) == {*files, "checksums.json"}
    for name, body in files.items():
        assert (folder / name).read_bytes() == body


class TestWhatArrives:
    def test_a_name_fetches_once_and_loads_what_was_published(self, publish, files, home, site, capsys):
        publish()
        weights = load_weights("test/tiny")
        expected = lively(tiny(cells=23))
        assert weights.config == expected.config
        for name in expected.arrays:
            np.testing.assert_array_equal(weights.arrays[name], expected.arrays[name])
        assert_complete(home, files)
        assert "weights.hdf5: 0.1 of 0.1 MB" in capsys.readouterr().err
        Embedder.load("test/tiny", device="cpu")
        assert [len(page.asked) for page in site.pages.values()] == [1, 1]
        assert capsys.readouterr().err == ""

    def test_what_the_files_were_is_recorded(self, publish, files, home):
        publish()
        assert fetch("test/tiny") == catalogue.entry_named("test/tiny").folder == home / "test/tiny"
        recorded = json.loads((home / "test/tiny/checksums.json").read_text())
        assert recorded == {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}

    def test_strings_are_split_for_the_language_of_the_catalogue(self, publish):
        publish(language="ko")
        assert (load_weights("test/tiny").tokenizer.name, load_weights("test/tiny").tokenizer.language) == (
            "plain",
            "ko",
        )

    def test_a_pickled_embedder_keeps_its_language(self, publish):
        publish(language="ko")
        elmo = Embedder.load("test/tiny", device="cpu")
        again = pickle.loads(pickle.dumps(elmo))
        assert elmo.info()["model"] == again.info()["model"] == "test/tiny"
        assert again.tokenizer_info == elmo.tokenizer_info == load_weights("test/tiny").tokenizer

    def test_progress_hears_every_byte(self, publish, files):
        publish(slowly(4, 0.02))
        heard = []
        fetch("test/tiny", progress=lambda *news: heard.append(news))
        assert heard[-1] == ("weights.hdf5", len(files["weights.hdf5"]), len(files["weights.hdf5"]))
        assert [done for file, done, _ in heard if file == "weights.hdf5"] == sorted(
            {done for file, done, _ in heard if file == "weights.hdf5"}
        )
        assert len(heard) > 3

    def test_a_zip_is_read_as_it_is(self, publish, files, home):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as zipped:
            for name, body in {"options.json": files["options.json"], "model.hdf5": files["weights.hdf5"]}.items():
                zipped.writestr(name, body)
        publish(files={"210.zip": archive.getvalue()})
        assert load_weights("test/tiny").config == tiny(cells=23)
        assert held(home / "test/tiny") == {"210.zip", "checksums.json"}

    def test_a_tar_file_is_unpacked_and_not_kept_twice(self, publish, files, home, monkeypatch):
        publish(files={"model.tar.gz": tarred({f"slovenian/{name}": body for name, body in files.items()})})
        assert load_weights("test/tiny").config == tiny(cells=23)
        assert held(home / "test/tiny") == {"unpacked", "checksums.json"}
        monkeypatch.setenv("ELMOFIRE_OFFLINE", "1")
        assert load_weights("test/tiny").config == tiny(cells=23)

    def test_a_second_address_serves_where_the_first_does_not(self, publish, site, files, home, monkeypatch):
        entry = publish()
        moved = tuple(replace(file, urls=(site.address + "/gone", *file.urls)) for file in entry.files)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [replace(entry, files=moved)])
        fetch("test/tiny")
        assert_complete(home, files)

    def test_the_users_proxy_is_asked(self, publish, site, files, home, monkeypatch):
        entry = publish()
        for file, body in zip(entry.files, files.values(), strict=True):  # a proxy is asked for whole addresses
            site.put(f"http://far.invalid/{file.name}", Page(body))
        far = tuple(replace(file, urls=(f"http://far.invalid/{file.name}",)) for file in entry.files)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [replace(entry, files=far)])
        monkeypatch.setenv("http_proxy", site.address)
        fetch("test/tiny")
        assert_complete(home, files)


class TestInterruptions:
    def test_a_slow_server_is_waited_for(self, publish, files, home, monkeypatch):
        monkeypatch.setattr(downloads, "TIMEOUT", 0.5)
        publish(slowly(8, 0.1))  # longer than the time-out in all, shorter between two pieces
        fetch("test/tiny")
        assert_complete(home, files)

    def test_a_dropped_connection_goes_on_where_it_was(self, publish, files, home, site):
        publish(dropping(0.5), dropping(0.5), properly)
        fetch("test/tiny")
        assert_complete(home, files)
        size = len(files["weights.hdf5"])
        first = size // 2
        second = first + (size - first) // 2
        asked = [page.get("Range") for page in site.pages[WEIGHTS].asked]
        assert asked == [None, f"bytes={first}-", f"bytes={second}-"]
        assert site.pages[WEIGHTS].asked[1]["If-Range"] == '"1"'

    def test_a_server_that_falls_silent_is_given_up_and_what_came_is_kept(
        self, publish, files, home, site, monkeypatch
    ):
        monkeypatch.setattr(downloads, "TIMEOUT", 0.1)
        monkeypatch.setattr(downloads, "ATTEMPTS", 2)
        publish(stalling(0.5))
        with pytest.raises(ModelError, match=r"nothing came for 0\.1 s; given up after 2 attempts"):
            fetch("test/tiny")
        assert not catalogue.entry_named("test/tiny").here
        assert (home / "test/tiny/weights.hdf5.part").read_bytes() == files["weights.hdf5"][
            : len(files["weights.hdf5"]) // 2
        ]
        site.pages[WEIGHTS].behaviors = [properly]
        fetch("test/tiny")
        assert site.pages[WEIGHTS].asked[-1]["Range"] == f"bytes={len(files['weights.hdf5']) // 2}-"
        assert_complete(home, files)

    def test_a_killed_process_is_continued_by_the_next(self, publish, files, home, site):
        publish(stalling(0.5), properly)
        process = subprocess.Popen([sys.executable, "-c", fetching(site)], env=os.environ.copy())
        part = home / "test/tiny/weights.hdf5.part"
        half = len(files["weights.hdf5"]) // 2
        try:
            wait_until(lambda: part.is_file() and part.stat().st_size == half)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        fetch("test/tiny")
        assert [page.get("Range") for page in site.pages[WEIGHTS].asked] == [None, f"bytes={half}-"]
        assert_complete(home, files)

    def test_two_processes_at_once_fetch_once(self, publish, files, home, site):
        publish(slowly(4, 0.15))
        processes = [
            subprocess.Popen([sys.executable, "-c", fetching(site)], stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [process.communicate(timeout=60)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
        assert [len(page.asked) for page in site.pages.values()] == [1, 1]
        assert_complete(home, files)

    @pytest.mark.parametrize("packed", [False, True])
    def test_whoever_waits_is_told_and_finds_the_files(self, publish, files, home, packed):
        published = {"model.tar.gz": tarred(files)} if packed else files
        publish(slowly(4, 0.1), files=published)
        first = threading.Thread(target=fetch, args=("test/tiny",))
        first.start()
        wait_until(lambda: (home / f"test/tiny/{list(published)[-1]}.part").is_file())
        notes = []
        assert load_weights(fetch("test/tiny", note=notes.append)).config == tiny(cells=23)
        first.join()
        assert notes == ["another process is fetching test/tiny; waiting for it"]

    def test_a_server_that_cannot_go_on_starts_over(self, publish, files, home, site):
        publish(dropping(0.5), without_ranges)
        fetch("test/tiny")
        assert "Range" in site.pages[WEIGHTS].asked[1]
        assert_complete(home, files)

    def test_without_a_tag_nobody_can_tell_so_it_starts_over(self, publish, files, home, site):
        publish(dropping(0.5, etag=False), properly)
        fetch("test/tiny")
        assert [page.get("Range") for page in site.pages[WEIGHTS].asked] == [None, None]
        assert_complete(home, files)

    @pytest.mark.parametrize("behavior", [properly, ignoring_if_range], ids=lambda behavior: behavior.__name__)
    def test_a_file_that_changed_in_between_is_not_glued_to_the_old_one(self, publish, files, home, site, behavior):
        publish()
        other = bytes(len(files["weights.hdf5"]))

        def change(handler, page):
            dropping(0.5)(handler, page)
            page.body, page.etag = files["weights.hdf5"], '"2"'

        site.pages[WEIGHTS] = Page(other, change, behavior)
        fetch("test/tiny")
        assert_complete(home, files)

    @pytest.mark.parametrize("status", [500, 503, 429])
    def test_passing_trouble_passes(self, publish, files, home, status):
        publish(answer(status), answer(status), properly)
        fetch("test/tiny")
        assert_complete(home, files)


class TestRefusals:
    def refused(self, home, site, times: int | None = None) -> str:
        with pytest.raises(ModelError) as caught:
            fetch("test/tiny")
        if times is not None:
            assert len(site.pages[WEIGHTS].asked) == times
        assert "weights.hdf5" not in held(home / "test/tiny")
        assert not catalogue.entry_named("test/tiny").here
        return str(caught.value)

    def test_a_missing_file_says_what_to_download_where(self, publish, home, site):
        publish(answer(404))
        said = self.refused(home, site, times=1)
        assert f"weights.hdf5 cannot be fetched: {site.address}{WEIGHTS}: the server says 404 Not Found" in said
        assert f"  {site.address}{WEIGHTS}\n    -> {home / 'test/tiny/weights.hdf5'}" in said
        assert "options.json" not in said  # that one came

    @pytest.mark.parametrize(
        "behavior",
        [
            answer(200, b"<?xml version='1.0'?><title>Sign in</title>", Content_Type="text/html; charset=utf-8"),
            answer(200, b"\n <HTML><body>moved", Content_Type="application/octet-stream"),
        ],
        ids=["as such", "in disguise"],
    )
    def test_a_web_page_is_no_model(self, publish, home, site, behavior):
        publish(behavior)
        assert "the server sends a web page instead of the file" in self.refused(home, site, times=1)

    def test_a_body_shorter_than_promised_is_not_taken(self, publish, files, home, site):
        publish(answer(200, files["weights.hdf5"], Content_Length=10**6, ETag='"1"'), answer(416))
        assert "the server says 416" in self.refused(home, site)
        publish(answer(200, files["weights.hdf5"], Content_Length=10**6))
        size = len(files["weights.hdf5"])
        assert f"the connection ended after {size:,} of 1,000,000 bytes; given up after 5 attempts" in self.refused(
            home, site
        )

    def test_a_body_longer_than_promised_does_not_grow_the_file(self, publish, files, home, site):
        publish(answer(200, files["weights.hdf5"], Content_Length=1000))
        assert "the files came whole, but do not load" in self.refused(home, site, times=1)
        assert (home / "test/tiny.rejected/weights.hdf5").stat().st_size == 1000

    def test_a_gigantic_length_is_refused_before_a_byte_is_written(self, publish, home, site):
        publish(answer(200, b"x", Content_Length=10**15))
        assert "says that it has 1,000,000,000,000,000 bytes, but" in self.refused(home, site, times=1)
        assert held(home / "test/tiny") == {"options.json", "checksums.json"}

    def test_a_body_without_end_is_cut_off(self, publish, home, site, monkeypatch):
        monkeypatch.setattr(downloads, "_LARGEST", 100_000)

        def endless(handler, page):
            handler.close_connection = True
            handler.head(200)
            while True:
                handler.wfile.write(bytes(10_000))

        publish(endless)
        assert "the server sends more than the 100,000 bytes it may" in self.refused(home, site, times=1)

    def test_compressed_transfer_that_nobody_asked_for_is_refused(self, publish, home, site):
        publish(answer(200, b"x", Content_Encoding="gzip"))
        assert "the server sends it as gzip" in self.refused(home, site, times=1)

    def test_a_redirect_is_followed(self, publish, files, home, site):
        publish(answer(302, Location="/elsewhere"))
        site.put("/elsewhere", Page(files["weights.hdf5"]))
        fetch("test/tiny")
        assert_complete(home, files)

    @pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
    def test_a_redirect_away_from_the_web_is_refused(self, publish, home, site, location):
        publish(answer(302, Location=location))
        assert location in self.refused(home, site, times=1)

    def test_redirects_in_a_circle_end(self, publish, home, site):
        publish(answer(302, Location=WEIGHTS))
        assert "the server says 302" in self.refused(home, site)
        assert len(site.pages[WEIGHTS].asked) < 12

    def test_an_address_that_is_not_on_the_web_is_refused(self, publish, home, monkeypatch):
        entry = publish()
        odd = tuple(replace(file, urls=("file:///etc/hostname",)) for file in entry.files)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [replace(entry, files=odd)])
        with pytest.raises(ModelError, match="file:///etc/hostname: is not an http or https address"):
            fetch("test/tiny")

    def test_a_wrong_file_is_kept_aside_and_the_next_attempt_begins_anew(self, publish, files, home, site):
        publish(answer(200, b"not HDF5"), properly)
        said = self.refused(home, site, times=1)
        assert "test/tiny: the files came whole, but do not load: " in said
        assert f"they are kept in {home / 'test/tiny.rejected'}" in said
        assert (home / "test/tiny.rejected/weights.hdf5").read_bytes() == b"not HDF5"
        fetch("test/tiny")
        assert_complete(home, files)

    def test_a_folder_that_cannot_be_written_says_how_to_choose_another(self, publish, home):
        home.write_text("a file where the folder should be")
        publish()
        with pytest.raises(ModelError, match=r"cannot be written: .*\nhint: ELMOFIRE_HOME names another folder"):
            fetch("test/tiny")


class TestChecksums:
    def test_a_stated_checksum_is_enforced(self, publish, files, home, site):
        publish(digests={"weights.hdf5": "sha1:" + "0" * 40})
        with pytest.raises(ModelError) as caught:
            fetch("test/tiny")
        found = hashlib.sha1(files["weights.hdf5"]).hexdigest()
        assert f"weights.hdf5 has the SHA1 {found}, but a README states {'0' * 40}" in str(caught.value)
        assert "weights.hdf5" not in held(home / "test/tiny")
        assert (home / "test/tiny/weights.hdf5.rejected").read_bytes() == files["weights.hdf5"]

    @pytest.mark.parametrize("algorithm", ["sha1", "md5", "sha256"])
    def test_a_file_with_the_stated_checksum_is_taken(self, publish, files, home, algorithm):
        digest = hashlib.new(algorithm, files["weights.hdf5"]).hexdigest()
        publish(digests={"weights.hdf5": f"{algorithm}:{digest}"})
        fetch("test/tiny")
        assert_complete(home, files)

    def test_another_file_than_the_first_time_is_an_error_until_the_user_says_otherwise(
        self, publish, files, home, site, tmp_path
    ):
        publish()
        fetch("test/tiny")
        (home / "test/tiny/weights.hdf5").unlink()
        changed = model_files_of_another_seed(tmp_path)
        site.pages[WEIGHTS].body = changed
        with pytest.raises(
            ModelError, match=r"weights\.hdf5 is not the file that was fetched the first time"
        ) as caught:
            fetch("test/tiny")
        assert f"remove {home / 'test/tiny/checksums.json'}" in str(caught.value)
        assert not catalogue.entry_named("test/tiny").here
        (home / "test/tiny/checksums.json").unlink()
        fetch("test/tiny")
        assert (home / "test/tiny/weights.hdf5").read_bytes() == changed

    def test_files_put_there_by_hand_are_checked_the_first_time(self, publish, files, home, site):
        publish(digests={"weights.hdf5": "md5:" + "0" * 32})
        (home / "test/tiny").mkdir(parents=True)
        for name, body in files.items():
            (home / "test/tiny" / name).write_bytes(body)
        with pytest.raises(ModelError, match=r"has the MD5 .*, but a README states 000"):
            load_weights("test/tiny")
        assert site.pages[WEIGHTS].asked == []


class TestOffline:
    @pytest.mark.parametrize("variable", ["ELMOFIRE_OFFLINE", "HF_HUB_OFFLINE"])
    def test_nothing_is_asked_and_the_error_says_what_to_put_where(self, publish, home, site, monkeypatch, variable):
        monkeypatch.setenv(variable, "1")
        entry = publish()
        with pytest.raises(ModelError) as caught:
            Embedder.load("test/tiny")
        said = str(caught.value)
        assert "test/tiny: is not on this machine, and offline mode is on" in said
        for file in entry.files:
            assert f"  {file.urls[0]}\n    -> {home / 'test/tiny' / file.name}" in said
        assert all(page.asked == [] for page in site.pages.values())
        assert not home.exists()

    def test_files_put_where_the_error_says_load(self, publish, files, home, site, monkeypatch):
        monkeypatch.setenv("ELMOFIRE_OFFLINE", "1")
        publish()
        (home / "test/tiny").mkdir(parents=True)
        for name, body in files.items():
            (home / "test/tiny" / name).write_bytes(body)
        assert load_weights("test/tiny").config == tiny(cells=23)
        assert_complete(home, files)

    def test_a_host_that_does_not_answer_says_the_same(self, publish, home, site, monkeypatch):
        entry = publish()
        port = closed_port()
        dead = tuple(replace(file, urls=(f"http://127.0.0.1:{port}/{file.name}",)) for file in entry.files)
        monkeypatch.setattr(catalogue, "catalogue", lambda: [replace(entry, files=dead)])
        monkeypatch.setattr(downloads, "ATTEMPTS", 2)
        with pytest.raises(ModelError) as caught:
            fetch("test/tiny")
        assert "cannot be reached" in str(caught.value)
        assert f"http://127.0.0.1:{port}/weights.hdf5\n    -> {home / 'test/tiny/weights.hdf5'}" in str(caught.value)


class TestUnpacking:
    @pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "C:\\outside", "a\\b"])
    def test_nothing_lands_outside(self, tmp_path, name):
        (tmp_path / "x.tar.gz").write_bytes(tarred({name: b"x"}))
        with pytest.raises(ModelError, match="points outside its folder"):
            unpacking.unpack(tmp_path / "x.tar.gz", tmp_path / "unpacked")
        assert held(tmp_path) == {"x.tar.gz"}

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
    def test_only_plain_files_are_unpacked(self, tmp_path, kind):
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/hostname"
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
            tar.addfile(member)
        with pytest.raises(ModelError, match="is a link or a device"):
            unpacking.unpack(tmp_path / "x.tar.gz", tmp_path / "unpacked")
        assert held(tmp_path) == {"x.tar.gz"}

    def test_a_bomb_does_not_go_off(self, tmp_path, monkeypatch):
        monkeypatch.setattr(unpacking, "_ALWAYS_FINE", 1 << 20)
        (tmp_path / "x.tar.gz").write_bytes(tarred({"zeros": bytes(8 << 20)}))
        with pytest.raises(ModelError, match="unpacks to over 20 times its size"):
            unpacking.unpack(tmp_path / "x.tar.gz", tmp_path / "unpacked")
        assert held(tmp_path) == {"x.tar.gz"}

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
    def test_a_cut_archive_is_an_error_of_ours(self, tmp_path, share):
        whole = tarred({"a": os.urandom(50_000)})
        (tmp_path / "x.tar.gz").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelError, match="cannot be unpacked"):
            unpacking.unpack(tmp_path / "x.tar.gz", tmp_path / "unpacked")
        assert held(tmp_path) == {"x.tar.gz"}


def tarred(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return archive.getvalue()


def model_files_of_another_seed(tmp_path) -> bytes:
    save_weights(lively(tiny(cells=23), seed=1), tmp_path / "other", to="hdf5")
    return (tmp_path / "other/weights.hdf5").read_bytes()


def fetching(site) -> str:
    """A program that fetches the tiny model from the site."""
    files = [(name, f"{site.address}/test/tiny/{name}") for name in ("options.json", "weights.hdf5")]
    return (
        "from elmofire.formats import catalogue\n"
        "from elmofire.formats.catalogue.fetch import fetch\n"
        f"files = tuple(catalogue.RemoteFile(name=name, urls=(url,)) for name, url in {files!r})\n"
        "entry = catalogue.Entry(name='test/tiny', language='en', family='hdf5 2018', files=files, license='', source='')\n"
        "catalogue.catalogue = lambda: [entry]\n"
        "fetch('test/tiny')\n"
    )


def wait_until(true, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
