"""h5py, torch and an AVIF-capable Pillow are what training needs; without them it is skipped."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("h5py")
