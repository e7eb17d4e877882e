"""One thread: the tests share their machine."""

import torch

torch.set_num_threads(1)
