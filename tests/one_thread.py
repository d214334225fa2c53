"""A fixture for folders whose tests run small products in torch: import it in their conftest.py."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of small products wait for each other longer than they work, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
