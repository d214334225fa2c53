"""A web server on loopback that misbehaves on request, and catalogue entries that point at it."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from models import lively, tiny

from elmofire import save_weights
from elmofire.formats.catalogue import Entry, RemoteFile

Behavior = Callable[["Handler", "Page"], None]


class Page:
    """A file of the site: its bytes, and how each request for it is answered (the last way from then on)."""

    def __init__(self, body: bytes, *behaviors: Behavior, etag: str = '"1"') -> None:
        self.body = body
        self.behaviors = list(behaviors or [properly])
        self.etag = etag
        self.asked: list[dict[str, str]] = []  # the headers of each request


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: "Site"

    def do_GET(self) -> None:
        with self.site.lock:
            page = self.site.pages.get(self.path)
            if page:
                page.asked.append(dict(self.headers))
                behavior = page.behaviors[min(len(page.asked), len(page.behaviors)) - 1]
        if page is None:
            answer(404)(self, Page(b""))
        else:
            behavior(self, page)

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value != "":
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Site:
    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Page] = {}
        self.lock = threading.Lock()
        self.end = threading.Event()

    def put(self, path: str, page: Page) -> str:
        self.pages[path] = page
        return self.address + path


@contextmanager
def running_site() -> Iterator[Site]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda request, client_address: None  # clients that hang up are what we test
        site = Handler.site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            site.end.set()
            server.shutdown()
            thread.join()


# ── ways to answer ──────────────────────────────────────────────────────────────────────────────────────────────────


def properly(handler: Handler, page: Page) -> None:
    start = _start(handler, page, honor_if_range=True)
    body = page.body[start:]
    ranged = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}" if start else ""
    handler.head(206 if start else 200, Content_Length=len(body), ETag=page.etag, Content_Range=ranged)
    handler.wfile.write(body)


def without_ranges(handler: Handler, page: Page) -> None:
    handler.head(200, Content_Length=len(page.body), ETag=page.etag)
    handler.wfile.write(page.body)


def ignoring_if_range(handler: Handler, page: Page) -> None:
    start = _start(handler, page, honor_if_range=False)
    ranged = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}" if start else ""
    handler.head(206 if start else 200, Content_Length=len(page.body) - start, ETag=page.etag, Content_Range=ranged)
    handler.wfile.write(page.body[start:])


def dropping(share: float, *, etag: bool = True) -> Behavior:
    """The connection ends after a share of what was asked for."""

    def behavior(handler: Handler, page: Page) -> None:
        start = _start(handler, page, honor_if_range=True) if etag else 0
        body = page.body[start:]
        ranged = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}" if start else ""
        tag = page.etag if etag else ""
        handler.head(206 if start else 200, Content_Length=len(body), ETag=tag, Content_Range=ranged)
        handler.wfile.write(body[: int(len(body) * share)])
        handler.close_connection = True

    return behavior


def slowly(pieces: int, seconds: float) -> Behavior:
    def behavior(handler: Handler, page: Page) -> None:
        handler.head(200, Content_Length=len(page.body), ETag=page.etag)
        size = -(-len(page.body) // pieces)
        for start in range(0, len(page.body), size):
            handler.wfile.write(page.body[start : start + size])
            handler.wfile.flush()
            time.sleep(seconds)

    return behavior


def stalling(share: float) -> Behavior:
    """A share of the file, and then silence."""

    def behavior(handler: Handler, page: Page) -> None:
        start = _start(handler, page, honor_if_range=True)
        ranged = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}" if start else ""
        handler.head(206 if start else 200, Content_Length=len(page.body) - start, ETag=page.etag, Content_Range=ranged)
        handler.wfile.write(page.body[start : int(len(page.body) * share)])
        handler.wfile.flush()
        handler.site.end.wait(30)
        handler.close_connection = True

    return behavior


def answer(status: int, body: bytes = b"", **headers: object) -> Behavior:
    def behavior(handler: Handler, page: Page) -> None:
        handler.head(status, **{"Content_Length": len(body), **headers})
        handler.wfile.write(body)
        handler.close_connection = True

    return behavior


def _start(handler: Handler, page: Page, *, honor_if_range: bool) -> int:
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if asked and honor_if_range and handler.headers.get("If-Range") != page.etag:
        return 0
    return int(asked[1]) if asked else 0


# ── models on it ────────────────────────────────────────────────────────────────────────────────────────────────────


def model_files(folder) -> dict[str, bytes]:
    """options.json and weights.hdf5 of a tiny model; the weights are some 60 kB."""
    save_weights(lively(tiny(cells=23)), folder, to="hdf5")
    return {name: (folder / name).read_bytes() for name in ("options.json", "weights.hdf5")}


def entry_of(site: Site, files: dict[str, bytes], *behaviors: Behavior, name: str = "test/tiny", **facts) -> Entry:
    """Put a model on the site; the behaviors are those of its last file."""
    digests = facts.pop("digests", {})
    *_, last = files
    remote = tuple(
        RemoteFile(
            name=file,
            urls=(site.put(f"/{name}/{file}", Page(body, *(behaviors if file == last else ()))),),
            digest=digests.get(file, ""),
            digest_source="a README" if file in digests else "",
        )
        for file, body in files.items()
    )
    facts = {"language": "en", "family": "hdf5 2018", "license": "not stated", "source": "a test", **facts}
    return Entry(name=name, files=remote, **facts)


def make_quiet_surroundings(monkeypatch: pytest.MonkeyPatch, home) -> None:
    """An empty cache, no proxy between us and loopback, and no long waits."""
    for variable in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ELMOFIRE_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("ELMOFIRE_HOME", str(home))
    monkeypatch.setattr("elmofire.formats.catalogue.downloads.PAUSE", 0.01)
