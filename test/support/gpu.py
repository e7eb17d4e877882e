"""GPUs that torch finds here, and the mark of what needs one."""

from __future__ import annotations

import pytest
import torch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
NO_GPU = pytest.mark.skipif(GPUS < 1, reason="no GPU: torch finds no CUDA device here")
NO_SECOND = pytest.mark.skipif(GPUS < 2, reason="no second GPU: torch finds one at most")
DEVICES = ["cpu", pytest.param("cuda:0", marks=(pytest.mark.gpu, NO_GPU))]
PAIRS = [("cpu", "cpu"), pytest.param("cuda:0", "cuda:1", marks=(pytest.mark.gpu, NO_SECOND))]
