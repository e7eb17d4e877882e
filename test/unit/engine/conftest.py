"""One thread: the tests share their machine."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

torch.set_num_threads(1)
