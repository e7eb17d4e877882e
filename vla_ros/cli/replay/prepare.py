"""What is known of a replay before anything is started."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_ros.cli.replay.options import frame_range, graph_of, needs_of
from vla_ros.timing import SECOND

if TYPE_CHECKING:
    from vla_ros.bringup.graph_file import GraphSpec
    from vla_ros.replay.bag import Bag
    from vla_ros.replay.frames import Frames
    from vla_ros.replay.plan import Plan
    from vla_ros.replay.recorded import Recorded
    from vla_ros.replay.run import Run
    from vla_ros.replay.topics import Picked


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is known before the policy node starts."""

    picked: Picked
    frames: Frames
    recorded: Recorded
    plan: Plan
    spec: GraphSpec
    needs: tuple[str, ...]
    slop_ns: int
    before: Run | None


def prepare(args: argparse.Namespace, mode: str, bag: Bag) -> Prepared:
    """Read and judge all there is, so that nothing is started for a bag that is no good.

    BagError, UserError: what is wrong with it, or with the options.
    """
    from vla_ros.nodes.common.convert import ENCODINGS
    from vla_ros.replay.frames import scan
    from vla_ros.replay.golden import load_golden
    from vla_ros.replay.parts import require
    from vla_ros.replay.plan import make_plan
    from vla_ros.replay.recorded import read_recorded
    from vla_ros.replay.topics import parse_remaps, pick

    picked = pick(bag.topics, parse_remaps(args.remap))
    golden = load_golden(args.golden) if args.golden else None
    first, last = frame_range(args.frames)
    frames = scan(bag, picked, tuple(ENCODINGS), args.max_gap, first, last)
    recorded = read_recorded(bag, picked)
    parameters = bag.run.parameters.get("policy", {}) if bag.run else {}
    spec = graph_of(args, mode, parameters, picked.compressed, frames.rate_hz)
    node = spec.node("policy")
    needs = needs_of(node)
    require(picked, needs)
    control_hz = {**node.file_parameters(), **node.parameters}["control_rate_hz"]
    return Prepared(
        picked=picked,
        frames=frames,
        recorded=recorded,
        plan=make_plan(frames, recorded, args.instruction),
        spec=spec,
        needs=needs,
        slop_ns=round(SECOND / float(control_hz) / 2),
        before=golden or recorded.run,
    )
