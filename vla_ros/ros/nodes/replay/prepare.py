"""A replay before and after it runs: the bag's check, the node that is started, and the report.
``args`` are the options of `vla-ros replay`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.clock import SECOND
from vla_ros.core.errors import UserError
from vla_ros.core.pixels import ENCODINGS
from vla_ros.core.resources import config_path
from vla_ros.data.actions import Rates
from vla_ros.data.bag_frames import BagFrames, TopicRoles, parse_remaps, pick, require, scan
from vla_ros.data.bags import Bag
from vla_ros.data.replay import (
    Chunk,
    Recorded,
    ReplayPlan,
    instructions_of,
    make_plan,
    rates_of,
    read_chunks,
    read_recorded,
    run_of_chunks,
)
from vla_ros.data.replay_compare import (
    Comparison,
    PolicyRun,
    Report,
    RunFigures,
    compare,
    load_golden,
)
from vla_ros.policies.trust import refuse_named
from vla_ros.ros.bringup.graph_file import GraphSpec, NodeSpec, parse_overrides
from vla_ros.ros.nodes.replay import AS_IT_IS_ASKED, CHUNKS, frame_range
from vla_ros.runtime.safety import MOST_CONTROL_HZ

if TYPE_CHECKING:
    from vla_ros.ros.nodes.replay.driver import ReplayedFrames  # rclpy


def graph_of(
    args: argparse.Namespace,
    mode: str,
    recorded: Mapping[str, Any],
    compressed: bool,
    camera_hz: float,
) -> GraphSpec:
    """Graph of the policy node: the parameters it was recorded with, those that the mode needs, and
    those that the user gave, in this order.

    UserError: a parameter that the node does not have, no policy is named, or the recording names a
    program, a server or a path that only the user may (:mod:`vla_ros.policies.trust`).
    """
    file = config_path("policy.yaml")
    known = NodeSpec("policy", "policy", (file,)).file_parameters()
    values = {name: value for name, value in recorded.items() if name in known}
    waits = mode in AS_IT_IS_ASKED
    rate = 1.0 if waits else float(args.rate or 1.0)
    values |= _rates(values, mode, camera_hz)
    if camera_hz:
        values["camera_rate_hz"] = min(1000.0, max(0.1, camera_hz * rate))
    values |= {
        "mode": "lockstep" if waits else "realtime",
        "use_sim_time": waits,
        "image_transport": "compressed" if compressed else "raw",
        "instruction": "",
        "detect_frozen": False,
    }
    if mode == CHUNKS:  # each is as late as its request says, and no later
        values |= {"delay_frames": 0}
    own = ("policy", "checkpoint", "decoding", "device", "dtype", "weights")
    values |= {name: getattr(args, name) for name in own if getattr(args, name) is not None}
    node = NodeSpec("policy", "policy", (file,), values, lifecycle=True)
    given = parse_overrides([f"policy.{item}" for item in args.param]).get("policy", {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UserError(f"-p {unknown[0]}: the policy node has {', '.join(known)}")
    if not (args.policy or "policy" in given or "policy" in recorded):
        raise UserError(
            f"{args.bag} does not say which policy it is of: give --policy, and for vla"
            " --checkpoint (a bag of `vla-ros record` says it in its metadata or in"
            " vla_ros_run.json beside it)"
        )
    named = {name: getattr(args, name) for name in own if getattr(args, name) is not None} | given
    left = {name: value for name, value in recorded.items() if name in known and name not in named}
    refuse_named(left, f"{args.bag}", named, "by --checkpoint, --policy or -p")
    floats = {n: float(v) for n, v in given.items() if type(known[n]) is float and type(v) is int}
    values |= given | floats
    return GraphSpec((node,), "replay")


_FAST_HZ = 200.0  # flat out: an answer is a command at once
_STEPS = 0.75  # of the control rate: frames that come less often are no control steps


def _rates(recorded: Mapping[str, Any], mode: str, camera_hz: float) -> dict[str, float]:
    """The two rates of a replay: those of the run, or an action and a command a frame where nothing
    shows them, or where each frame is answered before the next one comes although the run commanded
    between its frames."""
    if mode == "fast":
        return dict.fromkeys(("action_rate_hz", "control_rate_hz"), _FAST_HZ)
    if not recorded:
        hz = min(MOST_CONTROL_HZ, max(1.0, camera_hz))
        return dict.fromkeys(("action_rate_hz", "control_rate_hz"), hz) if camera_hz else {}
    control_hz = float(recorded.get("control_rate_hz", 0.0))
    action_hz = float(recorded.get("action_rate_hz", 0.0)) or control_hz
    found = {"action_rate_hz": action_hz} if action_hz else {}
    between = mode == CHUNKS or camera_hz < _STEPS * control_hz
    if mode in AS_IT_IS_ASKED and between and action_hz < control_hz:
        found["control_rate_hz"] = max(1.0, action_hz)
    return found


def _of_checkpoint(values: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of cameras and of state values that the checkpoint takes; one that cannot be read is
    for the policy node to refuse."""
    if values.get("policy") != "vla":
        return 1, 0
    from vla_ros.policies.base import PolicyRefused
    from vla_ros.policies.conventions import conventions_of

    try:
        key, scale = str(values.get("unnorm_key", "")), (1.0,) * 6
        found = conventions_of(str(values.get("checkpoint", "")), "", key, scale)
    except PolicyRefused:
        return 1, 0
    return found.cameras, found.state


def needs_of(node: NodeSpec) -> tuple[str, ...]:
    """Topics that the policy joins with an image, in the order in which they are published."""
    values = {**node.file_parameters(), **node.parameters}
    needs = []
    if values.get("policy") == "scripted":
        needs.append("ground_truth")
    cameras, state = _of_checkpoint(values)
    if values.get("use_joint_states") or state:
        needs.append("joint_states")
    if values.get("use_wrist_image") or cameras == 2:
        needs.append("wrist_image")
    return tuple(needs)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replay before the policy node starts."""

    picked: TopicRoles
    frames: BagFrames
    recorded: Recorded
    plan: ReplayPlan
    spec: GraphSpec
    needs: tuple[str, ...]
    slop_ns: int
    before: PolicyRun | None
    rates: Rates | None = None  # of the run
    chunks: tuple[Chunk, ...] = ()  # mode chunks: those to be requested again
    instructions: Mapping[int, str] = field(default_factory=dict)  # of their epochs


def mode_like(args: argparse.Namespace, bag: Bag) -> str:
    """Mode that repeats what the policy was asked in the run: its chunks, each with the delay that
    it was asked with, where it ran in real time and recorded them. Of a pipeline, and beside golden
    files, which are of lock-step, each frame."""
    recorded = bag.run.parameters.get("policy", {}) if bag.run else {}
    if recorded.get("mode") != "realtime" or args.golden or args.save:
        return "lockstep"
    picked = pick(bag.topics, parse_remaps(args.remap))
    name = picked.name("policy/action_chunk")
    if not any(topic.name == name and topic.count for topic in bag.topics):
        return "lockstep"
    run = read_recorded(bag, picked).run
    return "lockstep" if run is None or run.pipeline_depth > 1 else CHUNKS


def prepare(args: argparse.Namespace, mode: str, bag: Bag) -> Prepared:
    """Read and check the bag, so that nothing is started for a bad one.

    BagError, UserError: an error of the bag, or of the options.
    """
    picked = pick(bag.topics, parse_remaps(args.remap))
    golden = load_golden(args.golden) if args.golden else None
    first, last = frame_range(args.frames)
    frames = scan(bag, picked, tuple(ENCODINGS), args.max_gap, first, last)
    recorded = read_recorded(bag, picked)
    parameters = dict(bag.run.parameters.get("policy", {})) if bag.run else {}
    rates = _recorded_rates(bag, picked, recorded)
    if parameters and rates is not None:
        parameters |= {"action_rate_hz": rates.action_hz, "control_rate_hz": rates.control_hz}
    spec = graph_of(args, mode, parameters, picked.compressed, frames.rate_hz)
    node = spec.node("policy")
    needs = needs_of(node)
    require(picked, needs)
    values = {**node.file_parameters(), **node.parameters}
    control_hz = values["control_rate_hz"]
    slower_hz = min(values["action_rate_hz"] or control_hz, control_hz)  # as the node joins them
    prepared = Prepared(
        picked=picked,
        frames=frames,
        recorded=recorded,
        plan=make_plan(frames, recorded, args.instruction),
        spec=spec,
        needs=needs,
        slop_ns=round(SECOND * (values["pairing_slop_s"] or 0.5 / slower_hz)),
        before=golden or recorded.run,
        rates=rates,
    )
    return _with_chunks(prepared, args, bag) if mode == CHUNKS else prepared


def _recorded_rates(bag: Bag, picked: TopicRoles, recorded: Recorded) -> Rates | None:
    commands = recorded.run.commands if recorded.run else ()
    return rates_of(bag, picked, [one.published_ns for one in commands])


def _with_chunks(prepared: Prepared, args: argparse.Namespace, bag: Bag) -> Prepared:
    """The replay with the chunks of the bag, to be requested and compared."""
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


def with_requests(prepared: Prepared, folder: Path) -> Prepared:
    """The replay whose node gets its requests from a file in ``folder``."""
    from vla_ros.core.types import Executing
    from vla_ros.runtime.control.requests import RecordedRequest, write_requests

    file = folder / "chunks.json"
    write_requests(
        file,
        (
            RecordedRequest(
                c.observed_ns,
                Executing(*c.continued) if c.continued else None,
                c.conditioning_delay,
            )
            for c in prepared.chunks
        ),
    )
    node = prepared.spec.node("policy")
    node = replace(node, parameters={**node.parameters, "replay_requests_file": str(file)})
    return replace(prepared, spec=replace(prepared.spec, nodes=(node,)))


_GATED = (
    "every token is the same: the actions differ by what the gate did to them (clamping, gripper),"
    " which depends on the actions published before"
)


def make_report(
    args: argparse.Namespace, mode: str, prepared: Prepared, played: ReplayedFrames, wall_s: float,
    notes: Iterable[str],
) -> Report:  # fmt: skip
    """Report of both runs. ``notes``: lines to add to it."""
    before = prepared.before
    name = "golden" if args.golden else "recorded"
    found = compare(before, played.run, played.shown, played.ends) if before else None
    return Report(
        bag=str(args.bag),
        mode=f"as recorded x{args.rate or 1.0:g}" if mode == "recorded" else mode,
        frames=len(played.shown),
        camera_rate_hz=prepared.frames.rate_hz,
        now=RunFigures.of("replayed", played.run),
        before=RunFigures.of(name, before) if before else None,
        comparison=found,
        tolerance=args.tolerance,
        strict=mode in AS_IT_IS_ASKED,
        wall_s=wall_s,
        notes=(*notes, *_notes(prepared, played, found)),
    )


def _notes(prepared: Prepared, played: ReplayedFrames, found: Comparison | None) -> list[str]:
    frames, before = prepared.frames, prepared.before
    notes = []
    if frames.repeated or frames.late:
        notes.append(
            f"left out: {frames.repeated} frames that came twice, {frames.late} that came late"
        )
    if prepared.plan.skipped:
        notes.append(f"left out: {prepared.plan.skipped} frames before the first instruction")
    control_hz = float(prepared.spec.node("policy").parameters.get("control_rate_hz", 0.0))
    if prepared.rates is not None and 0.0 < control_hz < prepared.rates.control_hz:
        was_hz = prepared.rates.control_hz
        notes.append(
            f"the run had {was_hz:g} commands a second, the replay {control_hz:g}: compared is what"
            " was executed over each action"
        )
    if played.refused:
        stamp, why = next(iter(played.refused.items()))
        notes.append(
            f"{len(played.refused)} frames could not be answered, the first at"
            f" {stamp / SECOND:.6f}: {why}"
        )
    if played.state:
        notes.append(f"the policy ended in {played.state}")
    if before and before.checkpoint_sha256 not in ("", played.run.checkpoint_sha256):
        notes.append("the checkpoint is not the one of the other run: its hash differs")
    if found is not None and found.largest and found.token_match_rate == 1.0:
        notes.append(_GATED)
    return notes
