"""The head of every log says which compiled kernels these tests ran on, and which this machine lacks."""

from elmofire.engine import library


def pytest_report_header() -> list[str]:
    missing = [f"compiled kernels: not {name}: {why}" for name, why in library.missing().items()]
    return [f"compiled kernels: {', '.join(library.available()) or 'none, numpy serves'}", *missing]
