"""What a replay found: compared, noted, kept and printed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vla_ros.cli.replay.options import AS_IT_IS_ASKED
from vla_ros.errors import UserError
from vla_ros.timing import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vla_ros.cli.replay.prepare import Prepared
    from vla_ros.nodes.replay.player import Played
    from vla_ros.replay.compare import Comparison
    from vla_ros.replay.report import Report

_GATED = (
    "every token is the same: the actions differ by what the gate did to them (clamping, gripper),"
    " which depends on the actions published before"
)


def conclude(args: argparse.Namespace, report: Report, played: Played) -> int:
    """Write and print the report. Returns the exit status."""
    from vla_ros.replay.golden import save_golden
    from vla_ros.replay.page import page
    from vla_ros.replay.report import json_line, text

    if args.save:
        save_golden(args.save, played.run, str(args.bag))
    if args.html:
        try:
            args.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.html}: {error.strerror}") from None
    print(text(report), flush=True)
    if args.json:
        print(json_line(report), flush=True)
    return 0 if report.within else 1


def make_report(
    args: argparse.Namespace, mode: str, prepared: Prepared, played: Played, wall_s: float,
    notes: Iterable[str],
) -> Report:  # fmt: skip
    """Both runs compared. ``notes``: what is to be said besides."""
    from vla_ros.replay.compare import compare
    from vla_ros.replay.report import Report, Side

    before = prepared.before
    name = "golden" if args.golden else "recorded"
    found = compare(before, played.run, played.shown, played.ends) if before else None
    return Report(
        bag=str(args.bag),
        mode=f"as recorded x{args.rate or 1.0:g}" if mode == "recorded" else mode,
        frames=len(played.shown),
        camera_rate_hz=prepared.frames.rate_hz,
        now=Side.of("replayed", played.run),
        before=Side.of(name, before) if before else None,
        comparison=found,
        tolerance=args.tolerance,
        strict=mode in AS_IT_IS_ASKED,
        wall_s=wall_s,
        notes=(*notes, *_notes(prepared, played, found)),
    )


def _notes(prepared: Prepared, played: Played, found: Comparison | None) -> list[str]:
    frames, before = prepared.frames, prepared.before
    notes = []
    if frames.repeated or frames.late:
        notes.append(
            f"left out: {frames.repeated} frames that came twice, {frames.late} that came late"
        )
    if prepared.plan.skipped:
        notes.append(f"left out: {prepared.plan.skipped} frames before the first instruction")
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
