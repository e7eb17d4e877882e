"""The phases of every family of policies in one run, one process each: a table for people.

    python benchmarks/families.py                    # the small presets, a minute or two
    python benchmarks/families.py --size published   # published sizes: up to 8 GB and minutes each
    python benchmarks/families.py --out benchmarks/families

Weights are random: times and shares are of the architecture, not of a policy. Writes families.md
and a bench.json for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

FAMILIES = (
    *("smolvla", "pi0", "pi05", "groot-n1.5", "groot-n1.6", "groot-n1.7", "evo1"),
    *("bitvla", "openvla-oft"),
)
SINGLE_PASS = {"bitvla": "parallel", "openvla-oft": "parallel"}  # family -> its row
SMALL = {"openvla-oft": "random:small-oft"}
HEAD = (
    "| family | parameters | steps | vision ms | prefix ms | a step ms | chunk ms | prefix share |"
)


def main() -> int:
    """Run all, write the table. 1 where a bench failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=("small", "published"), default="small")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--timed", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "families")
    args = parser.parse_args()
    lines, failed, machine = [HEAD, "|---" * HEAD.count(" |") + "|"], [], {}
    for family in args.families:
        small = SMALL.get(family, f"random:{family}-small")
        checkpoint = small if args.size == "small" else f"random:{family}"
        print(f"{checkpoint} ...", file=sys.stderr, flush=True)
        folder = args.out / args.size / family
        command = [sys.executable, "-m", "vla_ros", "bench", "--checkpoint", checkpoint, "--json"]
        command += ["--dtype", args.dtype, "--rows", SINGLE_PASS.get(family, "flow")]
        command += [
            "--timed",
            str(args.timed),
            "--warm-up",
            str(args.warm_up),
            "--output",
            str(folder),
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            failed.append(checkpoint)
            continue
        found = json.loads((folder / "bench.json").read_text())
        machine = found.get("machine", machine)
        lines.append(row(family, found))
    text = "\n".join([f"# {args.size}, {args.dtype}", "", *lines, "", *footer(machine, failed)])
    (args.out / f"{args.size}.md").write_text(text + "\n")
    print(text)
    return int(bool(failed))


def row(family: str, found: dict) -> str:
    """One line of the table."""
    (one,) = found["decodings"].values()
    stages, shapes = one["stages_ms"], found["shapes"]
    steps, whole = shapes["steps"], sum(stages.values())
    head = stages["decode"] / max(1, steps)
    share = (stages["vision"] + stages["prefill"]) / whole
    return (
        f"| {family} | {shapes['parameters'] / 1e6:.1f} M | {steps or 'one pass'} |"
        f" {stages['vision']:.1f} | {stages['prefill']:.1f} | {head:.2f} | {whole:.1f} |"
        f" {share:.0%} |"
    )


def footer(machine: dict, failed: list[str]) -> list[str]:
    """What the table was measured on, and what is not in it."""
    lines = [", ".join(str(machine[key]) for key in ("cpu", "gpu", "torch") if machine.get(key))]
    return [*lines, *(f"failed: {name}" for name in failed)]


if __name__ == "__main__":
    sys.exit(main())
