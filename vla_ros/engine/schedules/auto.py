"""What ``auto`` stands for: the fastest schedule that changes nothing a checkpoint says.

* A checkpoint made for parallel decoding (OpenVLA-OFT) has only that.
* A token policy: speculation whose draft is the previous action, every token verified. It is
  autoregressive decoding where drafts do not pay, which the temporal drafter finds out by itself:
  it drafts nothing before its guess has once been right, and then only what saves more than it
  costs. ``actionflow`` gives more actions a second, but each rests on an older image.
"""

from __future__ import annotations

from dataclasses import replace

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.options import AUTO, EngineOptions


def resolve(options: EngineOptions, config: ModelConfig) -> EngineOptions:
    """The options with a schedule in place of ``auto``; others as they are."""
    if options.schedule != AUTO:
        return options
    return replace(options, schedule="parallel" if config.parallel else "speculative")
