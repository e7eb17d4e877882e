"""One thread: the tests share their machine."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # then each file is skipped: support/without.py
    import torch

    torch.set_num_threads(1)
