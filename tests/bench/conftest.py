"""Figures do not matter in these tests."""

from one_thread import one_thread

__all__ = ["one_thread"]
