"""What others have published of the same models, beside what was measured here.

Published figures are of other machines, precisions and numbers of cameras, as each row says; none
of them was measured by us. A family's stage has what LeRobot or the authors take by default.
"""

from __future__ import annotations

from groups import number

#: model, our stage and row (or passes, added up), who, on what, milliseconds, where it says so
PUBLISHED: tuple[tuple[str, str, str, str, str, float, str], ...] = (
    ("pi0", "family-pi0", "flow", "realtime-vla", "RTX 4090", 27.3, "arXiv 2603.26360"),
    ("pi05", "family-pi05", "flow", "FlashRT 0.1", "RTX 5090, FP8", 17.6, "its README"),
    ("pi05", "family-pi05", "flow", "FlashRT 0.1", "Thor, NVFP4, 2 views", 27.2, "its README"),
    ("pi05", "family-pi05", "flow", "vla-edge", "Thor, BF16, chunk 16", 62.2, "its README"),
    ("pi05", "family-pi05", "flow", "vLLM-Omni", "RTX 4090, BF16, 3 views, no graphs", 349.0,
     "PR 6950"),
    ("pi05", "family-pi05", "flow", "vLLM-Omni", "A100, Triton", 27.9, "PR 4419"),
    ("pi05", "family-pi05", "flow", "LeRobot through vla-eval", "A100", 110.0, "PR 88"),
    ("groot-n1.7", "family-groot-n1.7", "flow", "FlashRT 0.1", "RTX 5090", 16.6, "its README"),
    ("groot-n1.7", "family-groot-n1.7", "flow", "FlashRT 0.1", "Thor, 2 views", 29.9, "its README"),
    ("groot-n1.7", "family-groot-n1.7", "flow", "Isaac-GR00T, TensorRT", "Thor, NVFP4", 40.0,
     "jetson-ai-lab PR 422"),
    ("groot-n1.7", "family-groot-n1.7", "flow", "LeRobot through vla-eval", "A100", 240.0, "PR 88"),
    ("groot-n1.6", "family-groot-n1.6", "flow", "FlashRT 0.1", "RTX 5090", 12.5, "its README"),
    ("smolvla", "family-smolvla", "flow", "Tether 0.12", "A10G, TensorRT", 19.5, "its README"),
    ("smolvla", "family-smolvla", "flow", "LeRobot through vla-eval", "A100", 310.0, "PR 88"),
)  # fmt: skip
#: PhyAI says a share alone: 1.40 to 4.65 times faster than the authors' pi0, pi0.5 and GR00T N1.7,
#: and about 100 pi0.5 observations a second in batches of 32 on a Hopper (arXiv 2608.03682).
REMARK = (
    "PhyAI has no milliseconds of one observation: 1.40 to 4.65 times the authors' pace of pi0,"
    " pi0.5 and GR00T N1.7 (arXiv 2608.03682)."
)


def peers_table(stages: dict) -> list[str]:
    """A row a published figure, with ours of this machine; nothing where none of ours is there."""
    found = {(stage, row): ours(stages, stage, row) for _, stage, row, *_ in PUBLISHED}
    if not any(found.values()):
        return []
    lines = [
        "",
        "## Beside what others have published",
        "",
        f"Of other machines than this one. {REMARK}",
        "",
        "| model | who | on what | their ms | ours here, ms | where it is from |",
        "|---|---|---|---|---|---|",
    ]
    for model, stage, row, who, machine, ms, source in PUBLISHED:
        own = number(found[stage, row], "{:.1f}")
        lines.append(f"| {model} | {who} | {machine} | {ms:g} | {own} | {source} |")
    return lines


def ours(stages: dict, stage: str, row: str) -> float | None:
    """The median latency of a chunk, in ms."""
    rows = (stages.get(stage, {}).get("bench") or {}).get("decodings", {})
    return rows.get(row, {}).get("latency_ms")
