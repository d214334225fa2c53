"""The head of every log says which compiled kernels these tests ran on, and which this machine lacks."""

import os
import signal
import tempfile

import pytest

from elmofire.engine.compiled import library


@pytest.fixture(scope="session", autouse=True)
def home_of_its_own():
    """Packed weights and downloads of the tests are not left in the user's cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ELMOFIRE_HOME", folder)
        yield


def pytest_configure() -> None:
    """Where a shell starts the tests in the background, it has them ignore Ctrl-C, and what they start inherits it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    missing = [f"compiled kernels: not {name}: {why}" for name, why in library.missing().items()]
    return [f"compiled kernels: {', '.join(library.available()) or 'none, using numpy'}", *missing]
