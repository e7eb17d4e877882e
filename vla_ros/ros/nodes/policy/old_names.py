"""The policy node's parameters by their names of the last release, which go with the next one.

Apart from the table because command lines and recordings are read where there is no rclpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_ros.engine.options import OPTIONS, current

OLD_NAMES = {
    "decoding": "decoding",
    "conditioning_delay": "conditioning_delay_steps",
    "retold_chunks": "replay_requests_file",
    "require_gate": "require_verified",
}
#: Those that were parameters of their own and are words of engine_options now.
_OLD_ENGINE = (
    "drafter", "calibration", "draft_checkpoint", "acceptance", "relaxed_distance",
    "draft_extrapolation", "adaptive_draft", "temperature", "gamma", "tokenizer", "flow_steps",
    "cuda_graphs", "attention", "gemm", "image_steps", "vision_streams", "look_ahead", "compile",
    "seed", "rtc_guidance_limit", "rtc_jacobian",
)  # fmt: skip
OLD = (*OLD_NAMES, *_OLD_ENGINE, "publish_twist", "delay_window")


def renamed(given: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What parameters ``given`` by old names make of ``values``, and a line for a log.

    Words that engine_options has already win. Raises ValueError for a value that cannot be.
    """
    out: dict[str, Any] = {}
    present = {word.partition("=")[0] for word in values["engine_options"]}
    words: list[str] = []
    said: list[str] = []
    for name, value in given.items():
        if name in _OLD_ENGINE:
            (option, text), *_ = current({name: _as_text(value)}, lambda _: None).items()
            said.append(f"{name} (now {option}=... in engine_options)")
            usual = ("", "guided", _as_text(OPTIONS[option].default))
            if text not in usual and option not in present:
                words.append(f"{option}={text}")
        elif name == "publish_twist":
            said.append("publish_twist (now twist in outputs)")
            if value and "twist" not in values["outputs"]:
                out["outputs"] = [*filter(None, values["outputs"]), "twist"]
        elif name == "delay_window":
            said.append("delay_window (now always 10)")
        else:
            new = OLD_NAMES[name]
            said.append(f"{name} (now {new})")
            out[new] = value
    if words:
        out["engine_options"] = [*filter(None, values["engine_options"]), *words]
    return out, f"parameters that go with the next release: {', '.join(said)}"


def _as_text(value: Any) -> str:
    """As it is written in engine_options."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)
