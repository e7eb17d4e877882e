"""`vla-ros advise`: which decodings meet a camera, the two rates and an age limit, best first."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.core.console import print_json, rounded
from vla_ros.core.errors import UserError, user_errors
from vla_ros_lab.cli.roofline import (
    add_model_options,
    bench_of,
    check_draft_options,
    device_of,
    draft_of,
    model_of,
    roofline_of,
)

if TYPE_CHECKING:
    from vla_ros_lab.roofline.advice import Candidate, CandidateVerdict, Requirements
    from vla_ros_lab.roofline.decodings import DecodingTime
    from vla_ros_lab.roofline.fleet import Fleet
    from vla_ros_lab.roofline.roofline import Roofline

DESCRIPTION = """\
Name the ways of decoding that give the policy's actions at the rate of its data, each command on an
observation young enough: the lossless ones first, the freshest first. A lossy one changes the
policy's actions; it is marked. And how many such robots one `vla-ros serve` has time for, by the
same bound.
From the roofline of a device, or, with --bench, from what was measured there."""

EPILOG = """\
examples:
  vla-ros advise --camera-hz 30 --control-hz 20 --max-age-ms 150 --device h200
  vla-ros advise --camera-hz 30 --control-hz 5 --max-age-ms 500 --device orin-64 --dtype int4
  vla-ros advise --camera-hz 30 --action-hz 20 --control-hz 100 --max-age-ms 200 --bench bench.json

A roofline is a bound: a real engine reaches a part of it. Measure before you rely on it.
exit status: 0 at least one meets the limits, 1 none does, 2 wrong usage"""

#: options that only a calculation reads
CALCULATED = (
    "device", "model", "draft", "dtype", "weights", "prompt_tokens", "images", "gamma", "peak",
    "chunk", "coverage",
)  # fmt: skip


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "advise", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--camera-hz", type=float, required=True, help="frames a second")
    add("--control-hz", type=float, required=True, help="commands a second, the robot's")
    add("--action-hz", type=float, default=0.0,
        help="actions a second, the rate of the policy's data (that of --control-hz)")  # fmt: skip
    add("--max-age-ms", type=float, required=True, help="oldest observation a command may have")
    add("--device", help="a known device, or this, measured now (this)")
    add("--bench", type=Path, metavar="FILE", help="judge what `vla-ros bench` measured instead")
    add_model_options(parser)
    add("--json", action="store_true", help="add the verdicts as one last line of JSON")


def run(args: argparse.Namespace) -> int:
    """Judge and print. Returns the exit status."""
    from vla_ros_lab.roofline import report
    from vla_ros_lab.roofline.advice import Requirements, advise, by_executed

    check_draft_options(args)
    with user_errors(ValueError):
        age_s = args.max_age_ms / 1e3
        limits = Requirements(args.camera_hz, args.control_hz, age_s, args.action_hz)
    source, candidates, fleet_with = _candidates(args)
    verdicts = advise(candidates, limits, args.executed)
    if not verdicts:
        raise UserError(f"{source}: there is nothing to choose from")
    print(f"{source}\n{report.limits_line(limits)}\n\n{report.VERDICTS.table(verdicts)}\n")
    best = verdicts[0]
    by_part = by_executed(best.candidate, limits)
    if by_part:
        ms = best.candidate.seconds * 1e3
        print(f"{best.candidate.name}: a chunk of {best.candidate.chunk} actions in {ms:.1f} ms")
        print(f"{report.EXECUTED.table(by_part)}\n")
    print(_conclusion(best, limits) if best.meets else _nothing(limits))
    if best.meets:
        print(best.command)
    fleet = fleet_with(verdicts, limits)
    if fleet is not None:
        print(fleet)
    if args.json:
        result: dict[str, Any] = {
            "source": source,
            "limits": {
                "camera_hz": limits.camera_hz,
                "action_hz": limits.action_hz,
                "control_hz": limits.control_hz,
                "max_age_ms": args.max_age_ms,
            },
            "best": best.candidate.name if best.meets else None,
            "best_is_lossless": best.candidate.lossless if best.meets else None,
            "decodings": list(map(report.VERDICTS.json, verdicts)),
            "executed": list(map(report.VERDICTS.json, by_part)),
            "fleet": None if fleet is None else fleet.as_json(),
        }
        print_json(rounded(result))
    return int(not best.meets)


FleetWith = Callable[[Sequence["CandidateVerdict"], "Requirements"], "Fleet | None"]


def _candidates(args: argparse.Namespace) -> tuple[str, tuple[Candidate, ...], FleetWith]:
    """Source of the candidates, the candidates, and the fleet of a roofline."""
    from vla_ros_lab.roofline.advice import from_bench, from_roofline
    from vla_ros_lab.roofline.decodings import decodings, refused
    from vla_ros_lab.roofline.fleet import fleet_of

    bench = bench_of(args.bench)
    if bench is not None:
        given = [name for name in CALCULATED if getattr(args, name) not in (None, False)]
        if given:
            option = given[0].replace("_", "-")
            raise UserError(f"--bench has what was measured: leave out --{option}")
        where = bench.machine or bench.device
        source = f"measured: {bench.checkpoint} on {where} ({bench.path})"
        return source, from_bench(bench), lambda verdicts, limits: None
    model = model_of(args)
    roof = roofline_of(args, model, device_of(args.device or "this", args, model))
    draft = draft_of(args, model)

    def times(roof: Roofline) -> tuple[DecodingTime, ...]:
        return decodings(roof, args.alpha, args.gamma, draft, args.head, args.coverage)

    found = times(roof)
    rates = f"{roof.rates} rates, decoder {roof.precision.decoder}"
    source = f"calculated: {model.name} on {roof.device.title}, {rates}"
    roomy = tuple(s for s in found if roof.fits(s.depth))
    if not roomy:
        need = roof.memory().total / 1e9
        raise UserError(f"{model.name} needs {need:.1f} GB: it does not fit {roof.device.title}")
    if len(roomy) < len(found):
        names = ", ".join(s.name for s in found if s not in roomy)
        source += f"; there is no room for the caches of {names}"
    for name, why in refused(model).items():
        source += f"\nleft out: {name} {why}"
    return source, from_roofline(roomy), lambda v, limits: fleet_of(roof, v, limits, times)


def _conclusion(best: CandidateVerdict, limits: Requirements) -> str:
    rates = f"action_rate_hz:={limits.action_hz:g} control_rate_hz:={limits.control_hz:g}"
    limited = f"{rates} max_age_s:={limits.max_age_s:g}"
    line = f"best: {best.parameters} {limited}"
    if not best.candidate.lossless:
        line += "\nIt is LOSSY, it changes the policy's actions: no lossless one meets the limits."
    return line


def _nothing(limits: Requirements) -> str:
    line = "none meets the limits: raise --max-age-ms, or take a policy of fewer actions a second"
    if limits.camera_hz < limits.action_hz:
        line += (
            f"; a camera of {limits.camera_hz:g} Hz cannot feed {limits.action_hz:g} actions/s"
            " without chunks"
        )
    return line
