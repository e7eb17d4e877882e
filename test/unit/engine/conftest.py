"""One thread: the tests share their machine. The reference decodings are there."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):  # then each file is skipped: support/without.py
    import torch

    from vla_ros.lab import reference

    torch.set_num_threads(1)
    reference.register()
