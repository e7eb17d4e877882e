import pytest
import torch

from support.train import data_set


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path):
    """A data set of four demonstrations."""
    return data_set(tmp_path / "set")
