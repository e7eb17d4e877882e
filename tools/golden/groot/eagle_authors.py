"""NVIDIA's own GR00T N1.5 or N1.6, small and on a CPU, imported without training and servers.

A copy of its package is made in a scratch folder, where Eagle's config and tokenizer are small
ones; the code is NVIDIA's. What is missing on a CPU stands in: flash attention is torch's, for
every picture and every prompt by itself, as flash attention's packing does it; ``lmdb``,
``av`` and ``peft``, which videos and training need, are empty.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
try:
    import torchvision  # noqa: F401
except RuntimeError:  # that of the package index beside torch's CPU build; no operator is used
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from eagle_cases import FIRST_SPECIAL, MERGES, SPECIAL, vocabulary
from tokenizers import pre_tokenizers


def stand_in(name: str, **names: Any) -> None:
    """An empty module where there is none."""
    if importlib.util.find_spec(name) is None:
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        module.__dict__.update(names)
        sys.modules[name] = module


def bare(name: str, folder: Path) -> None:
    """A package whose modules can be imported and whose __init__ does not run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def small_copy(scratch: Path, eagle: str, change: Any) -> Path:
    """NVIDIA's package with a small Eagle in the folder ``eagle``; returns that folder."""
    spec = importlib.util.find_spec("gr00t")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("put a clone of NVIDIA/Isaac-GR00T on PYTHONPATH")
    shutil.copytree(Path(next(iter(spec.submodule_search_locations))), scratch / "gr00t")
    sys.path.insert(0, str(scratch))
    sys.modules.pop("gr00t", None)
    folder = scratch / "gr00t" / eagle
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Qwen2's tokenizer with a small vocabulary, as vocab.json, merges.txt, added_tokens.json."""
    vocab = vocabulary(sorted(pre_tokenizers.ByteLevel.alphabet()))
    added = {token: FIRST_SPECIAL + i for i, token in enumerate(SPECIAL)}
    assert len(vocab) == FIRST_SPECIAL
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(MERGES) + "\n", encoding="utf-8")
    (folder / "added_tokens.json").write_text(json.dumps(added))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config["added_tokens_decoder"] = {
        str(i): {"content": token, "special": True, **flags} for token, i in added.items()
    }
    config["additional_special_tokens"] = SPECIAL[1:]
    path.write_text(json.dumps(config))
    path = folder / "special_tokens_map.json"
    known = json.loads(path.read_text())
    known["additional_special_tokens"] = SPECIAL[1:]
    path.write_text(json.dumps(known))


def attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any = None, scaling: Any = None, **_: Any
) -> tuple[torch.Tensor, None]:
    """transformers' interface of flash attention, by torch; no padding in these cases."""
    assert mask is None
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=bool(module.is_causal), scale=scaling
    )
    return out.transpose(1, 2), None


def packed(query: Any, key: Any, value: Any, *, cu_seqlens_q: Any, softmax_scale: Any,
           causal: bool, **_: Any) -> torch.Tensor:  # fmt: skip
    """``flash_attn_varlen_func``: every sequence of a pack by itself; [n, heads, d] each."""
    assert not causal
    ends = cu_seqlens_q.tolist()
    parts = [
        F.scaled_dot_product_attention(
            *(t[a:b].transpose(0, 1) for t in (query, key, value)), scale=softmax_scale
        ).transpose(0, 1)
        for a, b in zip(ends, ends[1:], strict=False)
    ]
    return torch.cat(parts)[None]


def use_torch_attention() -> None:
    """For whatever asks for flash attention."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

    PreTrainedModel._check_and_enable_flash_attn_2 = classmethod(
        lambda cls, config, *_, **__: config
    )
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = attention


for _name in ("lmdb", "av"):
    stand_in(_name)
stand_in("peft", LoraConfig=None, get_peft_model=None)
