"""Success beside the gate's figures: python benchmarks/precision/study.py [--runs DIR]

Writes summary.json, table.txt and picture.png beside this file, of episodes.jsonl, gate.json and
draws.json; with --runs these are made anew first, of what precision.sh has played there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collect import REFERENCES, collect
from picture import draw

from vla_ros.core.console import Table, json_text, text_of
from vla_ros.data.episodes.rows import mcnemar, wilson

HERE = Path(__file__).parent
#: the same policy in float32 on another CPU, if benchmarks/tabletop.sh has played it: what rounding
#: alone does to single episodes
ELSEWHERE = HERE.parent / "tabletop" / "success" / "episodes.jsonl"
OTHER = "float32, another CPU"
Episodes = Mapping[tuple[str, int, int], bool]  # (task, seed, initial state) -> solved


def outcomes(path: Path) -> dict[str, dict[tuple[str, int, int], bool]]:
    """By precision how each episode ended."""
    out: dict[str, dict[tuple[str, int, int], bool]] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        key = (one["task"], one["seed"], one["initial_state"])
        out.setdefault(one["precision"], {})[key] = one["success"]
    return out


def elsewhere() -> dict[tuple[str, int, int], bool]:
    """The kept run of another machine, by the decoding that `auto` takes."""
    records = [json.loads(line) for line in ELSEWHERE.read_text().splitlines()]
    return {
        (r["job"]["task"], r["job"]["seed"], r["job"]["initial_state"]): r["success"]
        for r in records
        if r["job"]["variant"] == "speculative"
    }


def rate(solved: Sequence[bool]) -> dict[str, Any]:
    """Of some episodes."""
    low, high = wilson(sum(solved), len(solved))
    share = sum(solved) / len(solved) if solved else None
    return {"solved": sum(solved), "episodes": len(solved), "rate": share, "wilson95": [low, high]}


def paired(own: Episodes, reference: Episodes) -> dict[str, Any]:
    """From the same initial states: ``won`` where only this one solved it, ``lost`` where only the
    reference did."""
    both = own.keys() & reference.keys()
    won = sum(own[key] and not reference[key] for key in both)
    lost = sum(reference[key] and not own[key] for key in both)
    reached = rate([reference[key] for key in sorted(both)])
    return {"episodes": len(both), "reference": reached, "won": won, "lost": lost,
            "p": mcnemar(won, lost)}  # fmt: skip


def families(own: Episodes) -> dict[str, Any]:
    """Reach, push, pick and stack for themselves."""
    names = dict.fromkeys(task.split("_")[0] for task, _, _ in sorted(own))
    return {name: rate([own[key] for key in own if key[0].split("_")[0] == name]) for name in names}


def summarize() -> dict[str, Any]:
    """All of it, by precision."""
    played = outcomes(HERE / "episodes.jsonl")
    gates = json.loads((HERE / "gate.json").read_text())
    states = {key for own in played.values() for key in own}
    if ELSEWHERE.is_file():
        played[OTHER] = {key: solved for key, solved in elsewhere().items() if key in states}
    out = {}
    first, *others = REFERENCES
    for name in (first, OTHER, *others):
        if name not in played:
            continue
        own, reference = played[name], played[REFERENCES.get(name, first)]
        out[name] = {
            "success": rate(list(own.values())),
            "families": families(own),
            "paired": None if own is reference else paired(own, reference),
            "gate": gates.get(name),
        }
    return out


def table(found: Mapping[str, Any]) -> str:
    """For people."""
    heads = (
        *("precision", "solved", "95 % Wilson", "paired:\nfloat32", "won", "lost", "p"),
        *("gate:\nlargest error", "equal\ntokens", "largest\nmargin", "mm", "degrees"),
        *("indices\nmoved", "verdict"),
    )
    rows = []
    for name, one in found.items():
        success, pair, gate = one["success"], one["paired"], one["gate"]
        low, high = (100 * x for x in success["wilson95"])
        cells = [name, f"{success['solved']}/{success['episodes']}", f"{low:.1f} to {high:.1f}"]
        cells += ["-"] * 4 if pair is None else [
            f"{pair['reference']['solved']}/{pair['episodes']}", str(pair["won"]),
            str(pair["lost"]), f"{pair['p']:.2g}",
        ]  # fmt: skip
        cells += ["-"] * 7 if gate is None else [
            f"{worst(gate):.3g}", f"{gate['agreement']:.0%}", f"{gate['margin']:.3f}",
            f"{gate['displacement']['mm']:.1f}", f"{gate['displacement']['degrees']:.1f}",
            str(gate["indices"]), "passed" if gate["passed"] else "failed",
        ]  # fmt: skip
        rows.append(tuple(cells))
    lines = [text_of(Table(heads, rows), width=200), ""]
    for name, one in found.items():
        lines += [f"{name}: {reason}" for reason in (one["gate"] or {}).get("reasons", ())]
    return "\n".join(lines) + "\n"


def worst(gate: Mapping[str, Any]) -> float:
    """The largest relative error of any stage on any frame."""
    return max(error for error, _ in gate["stages"].values())


def main() -> int:
    """Write all three."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="where precision.sh has played")
    args = parser.parse_args()
    if args.runs:
        collect(args.runs, HERE)
    found = summarize()
    draws = json.loads((HERE / "draws.json").read_text())
    summary = {"precisions": found, "draws": draws}
    (HERE / "summary.json").write_text(json_text(summary) + "\n")
    text = table(found)
    (HERE / "table.txt").write_text(text)
    print(text)
    draw(found, HERE / "picture.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
