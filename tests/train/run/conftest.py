"""What all runs of the tests share."""

import pytest
from one_thread import one_thread
from train.run import small_runs

__all__ = ["corpus", "one_thread"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_runs.write_corpus(tmp_path_factory.mktemp("text") / "corpus")
