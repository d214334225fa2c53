"""One file from a plain http(s) address: it goes on where it stopped, and nothing a server says about it is taken on trust."""

import errno
import http.client
import json
import os
import shutil
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from elmofire import __version__
from elmofire.errors import ModelError

Progress = Callable[[str, int, int | None], None]  # a file's name, bytes so far, bytes in all where known

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # in a row that bring nothing new
PAUSE = 1.0  # seconds before the second attempt; doubles with each

_CHUNK = 1 << 18
_LARGEST = 16 << 30  # bytes; the largest published file has less than a tenth of it
_PASSING = {408, 425, 429}  # with all of 5xx: worth another attempt
_NO_NETWORK = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}


class _Dropped(Exception):
    """This attempt failed; another one may not."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What the server said of a file when its download began; lies beside the part as JSON."""

    url: str
    etag: str
    modified: str
    length: int | None

    @property
    def validator(self) -> str:
        """What If-Range takes: a weak tag promises nothing about bytes."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    @property
    def can_go_on(self) -> bool:
        return bool(self.validator) and self.length is not None


class Part:
    """A download under way: TARGET.part, and beside it what tells whether the server still has the same file."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.part")
        self._notes = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def begun(self, url: str) -> _Begun | None:
        """What is known of the bytes that are here, if the same address can go on from them."""
        try:
            notes = _Begun(**json.loads(self._notes.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        fits = notes.url == url and notes.can_go_on and 0 < self.size <= (notes.length or 0)
        return notes if fits else None

    def begin(self, notes: _Begun) -> None:
        self.path.write_bytes(b"")
        self._notes.write_text(json.dumps(asdict(notes)), encoding="utf-8")

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def finish(self, target: Path | None = None) -> None:
        """Give the whole file its name."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(target or self.target)
        self._notes.unlink(missing_ok=True)


def download(url: str, target: Path, progress: Progress | None = None) -> Part:
    """Fetch a file into `target`.part until it is whole; the caller looks at it and gives it its name.

    What has come stays when this fails, and the next call goes on from there if the server still has the same file.
    """
    part = Part(target)
    most = part.size
    failures = 0
    while True:
        try:
            _attempt(url, part, progress)
            return part
        except _Dropped as dropped:
            failures = 0 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures >= ATTEMPTS:
                raise ModelError(f"{url}: {dropped}; given up after {ATTEMPTS} attempts") from None
            time.sleep(PAUSE * 2 ** max(failures - 1, 0))


def _attempt(url: str, part: Part, progress: Progress | None) -> None:
    begun = part.begun(url)
    if begun and part.size == begun.length:
        return
    headers = {"User-Agent": f"elmofire/{__version__}", "Accept-Encoding": "identity"}
    if begun:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": begun.validator}
    with _opened(url, headers, part) as response:
        if response.status == 206 and begun:
            _check_continuation(response, begun, part)
        elif response.status == 200:
            begun = _check_beginning(url, response, part)
        else:
            raise ModelError(f"{url}: the server says {response.status} {response.reason}")
        _receive(url, response, begun, part, progress)


def _opened(url: str, headers: dict[str, str], part: Part) -> http.client.HTTPResponse:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ModelError(f"{url}: is not an http or https address")
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),  # as http_proxy, https_proxy and no_proxy say
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        with error:
            said = f"the server says {error.code} {str(error.reason).splitlines()[0] if error.reason else ''}".rstrip()
            if error.code == 416:  # what is here is not a beginning of what the server has
                part.clear()
                raise _Dropped(said) from None
            if error.code in _PASSING or error.code >= 500:
                raise _Dropped(said) from None
        raise ModelError(f"{url}: {said}") from None
    except URLError as error:
        reason = error.reason
        if isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError) or (
            isinstance(reason, OSError) and reason.errno in _NO_NETWORK
        ):
            raise ModelError(f"{url}: cannot be reached: {reason}") from None
        raise _Dropped(f"cannot be reached: {reason}") from None
    except (http.client.HTTPException, OSError) as error:
        raise _Dropped(_said(error)) from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects stay on the web, and an encrypted address stays encrypted."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            fp.close()
            raise ModelError(f"{req.full_url}: is redirected to {newurl}, which is not {' or '.join(allowed)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_continuation(response: http.client.HTTPResponse, begun: _Begun, part: Part) -> None:
    """A part of the same file, from where we are to its end; some servers ignore If-Range."""
    etag, modified = response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
    same = (not etag or etag == begun.etag) and (not modified or modified == begun.modified)
    expected = f"bytes {part.size}-{(begun.length or 0) - 1}/{begun.length}"
    if not same or response.headers.get("Content-Range", "") != expected:
        part.clear()
        raise _Dropped("the file changed on the server in between")


def _check_beginning(url: str, response: http.client.HTTPResponse, part: Part) -> _Begun:
    """The whole file, because it was asked for, or because the server does not go on, or has another one now."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise ModelError(f"{url}: the server sends it as {headers['Content-Encoding']}, which was not asked for")
    if headers.get_content_type() == "text/html":
        raise _web_page(url)
    notes = _Begun(url, headers.get("ETag", ""), headers.get("Last-Modified", ""), response.length)
    free = shutil.disk_usage(part.path.parent).free
    if (notes.length or 0) > min(_LARGEST, free):
        problem = f"the server says that it has {notes.length:,} bytes"
        limit = (
            f"only {free:,} are free in {part.path.parent}" if free < _LARGEST else f"no model has over {_LARGEST:,}"
        )
        raise ModelError(f"{url}: {problem}, but {limit}")
    part.begin(notes)
    return notes


def _receive(
    url: str, response: http.client.HTTPResponse, begun: _Begun | None, part: Part, progress: Progress | None
) -> None:
    length = begun.length if begun else None
    size = part.size
    with part.path.open("ab") as file:
        while chunk := _read(response):
            if size == 0 and chunk[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
                raise _web_page(url)
            size += len(chunk)
            if size > (_LARGEST if length is None else length):
                raise ModelError(f"{url}: the server sends more than the {length or _LARGEST:,} bytes it may")
            file.write(chunk)
            file.flush()
            if progress:
                progress(part.target.name, size, length)
    if length is not None and size < length:
        raise _Dropped(f"the connection ended after {size:,} of {length:,} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _Dropped(_said(error)) from None


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {TIMEOUT:g} s"
    return f"the connection broke: {str(error) or type(error).__name__}"


def _web_page(url: str) -> ModelError:
    return ModelError(f"{url}: the server sends a web page instead of the file")
