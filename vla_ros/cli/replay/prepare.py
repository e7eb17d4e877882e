"""What is known of a replay before anything is started."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.cli.replay.options import CHUNKS, frame_range, graph_of, needs_of
from vla_ros.errors import UserError
from vla_ros.timing import SECOND

if TYPE_CHECKING:
    from vla_ros.bringup.graph_file import GraphSpec
    from vla_ros.replay.bag import Bag
    from vla_ros.replay.chunks import Chunk
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
    chunks: tuple[Chunk, ...] = ()  # mode chunks: those to be asked for again
    instructions: Mapping[int, str] = field(default_factory=dict)  # of their epochs


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
    prepared = Prepared(
        picked=picked,
        frames=frames,
        recorded=recorded,
        plan=make_plan(frames, recorded, args.instruction),
        spec=spec,
        needs=needs,
        slop_ns=round(SECOND / float(control_hz) / 2),
        before=golden or recorded.run,
    )
    return _with_chunks(prepared, args, bag) if mode == CHUNKS else prepared


def _with_chunks(prepared: Prepared, args: argparse.Namespace, bag: Bag) -> Prepared:
    """With the chunks of the bag, to be asked for and compared."""
    from vla_ros.replay.chunks import instructions_of, read_chunks, run_of_chunks

    depth = prepared.recorded.run.pipeline_depth if prepared.recorded.run else 1
    if depth > 1:
        raise UserError("--mode chunks: this run's policy was a pipeline, whose answers continue"
                        " nothing: use --mode lockstep")  # fmt: skip
    first, last = prepared.frames.times[0].stamp_ns, prepared.frames.times[-1].stamp_ns
    chunks = [c for c in read_chunks(bag, prepared.picked) if first <= c.observed_ns <= last]
    instructions = instructions_of(chunks, prepared.recorded, args.instruction)
    recorded = run_of_chunks(chunks, prepared.recorded.run, len(chunks))
    before = prepared.before if args.golden else recorded
    return replace(prepared, chunks=tuple(chunks), instructions=instructions, before=before)


def with_questions(prepared: Prepared, folder: Path) -> Prepared:
    """The same, the node told by a file in ``folder`` what to ask."""
    from vla_ros.control.retold import Question, write_questions
    from vla_ros.core import Executing

    file = folder / "chunks.json"
    write_questions(
        file,
        (
            Question(
                c.observed_ns,
                Executing(*c.continued) if c.continued else None,
                c.told_delay,
            )
            for c in prepared.chunks
        ),
    )
    node = prepared.spec.node("policy")
    told = replace(node, parameters={**node.parameters, "retold_chunks": str(file)})
    return replace(prepared, spec=replace(prepared.spec, nodes=(told,)))
