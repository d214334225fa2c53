"""What all runs of the tests share."""

import pytest
import torch
from train.run import small_runs


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of small products wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_runs.write_corpus(tmp_path_factory.mktemp("text") / "corpus")
