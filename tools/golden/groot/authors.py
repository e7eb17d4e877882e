"""NVIDIA's model files, imported without the rest of its package (training, servers, data sets)."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import torch


def _bare(name: str, folder: Path) -> None:
    """A package whose modules can be imported and whose __init__ does not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def _source() -> Path:
    spec = importlib.util.find_spec("gr00t")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("put a clone of NVIDIA/Isaac-GR00T on PYTHONPATH")
    return Path(next(iter(spec.submodule_search_locations)))


_root = _source()
for _name in ("", "configs", "configs.model", "model", "model.gr00t_n1d7", "model.modules", "data",
              "data.state_action"):  # fmt: skip
    _bare(f"gr00t.{_name}".rstrip("."), _root / _name.replace(".", "/"))
sys.modules["gr00t.configs.model"].register_model_config = lambda *_: None
try:
    import tree  # noqa: F401
except ImportError:  # only to move tensors to a device
    sys.modules["tree"] = importlib.util.module_from_spec(ModuleSpec("tree", None))
    sys.modules["tree"].map_structure = lambda f, t: {k: f(v) for k, v in t.items()}
# The model makes one and never uses it; it would download Qwen's files.
_processing = ModuleType("gr00t.model.gr00t_n1d7.processing_gr00t_n1d7")
_processing.Gr00tN1d7DataCollator = lambda **_: None
sys.modules[_processing.__name__] = _processing
torch.set_num_threads(1)

from gr00t.model.gr00t_n1d7 import gr00t_n1d7  # noqa: F401
from gr00t.model.modules import qwen3_backbone  # noqa: F401
