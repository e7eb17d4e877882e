"""Tables of policies whose answers are chunks: what is executed of them, what a head is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vla_ros.analysis.chunk_head import LEVELS, HeadTime
from vla_ros.analysis.schedule_time import ScheduleTime, Served
from vla_ros.analysis.speculation import MISSED
from vla_ros.analysis.tables import hz, ms, scaled, table
from vla_ros.engine.trees.expected import Budget


def served_table(
    found: Sequence[ScheduleTime], given: Mapping[str, Served], camera_hz: float
) -> str:
    """One line a schedule: a chunk's time, actions a second, and how old their evidence is."""
    rows = [
        (
            s.name, ms(s.seconds), hz(given[s.name].executed * s.rate_hz),
            hz(given[s.name].actions_hz), ms(given[s.name].age_s), ms(given[s.name].worst_s),
        )
        for s in found
    ]  # fmt: skip
    executed = given[found[0].name].executed
    heads = (
        f"{executed} of {found[0].chunk} executed", "ms a chunk", "actions/s",
        f"actions/s at {camera_hz:g} Hz", "evidence ms", "at worst",
    )  # fmt: skip
    return table(heads, rows)


def head_line(head: HeadTime, given: ScheduleTime, assumed: bool) -> str:
    """What a level costs, and where the coverage comes from."""
    level, taps = head.level, head.taps
    lines = [
        f"recursive head, {head.width} wide: a level reads {scaled(level.bytes, 'B')},"
        f" {scaled(level.flops, 'FLOP')}, {ms(level.seconds)} ms ({level.bound}); the taps once a"
        f" round {scaled(taps.bytes, 'B')}, {ms(taps.seconds)} ms",
        f"  {given.draft_levels} of at most {LEVELS} levels, trees of {Budget().alone} nodes,"
        f" {given.draft_passes:.1f} passes of the head a chunk",
    ]
    if assumed:
        lines.append(
            f"  assumed: coverage {given.coverage:.2f}, as the head misses {MISSED:g} of what the"
            f" last chunk misses at alpha {given.alpha:g}; say --coverage if you know it"
        )
    return "\n".join(lines)


def coverage_table(rows: Sequence[ScheduleTime], plain: ScheduleTime) -> str:
    """One line a coverage; the last is what the schedule above was calculated with."""
    cells = [
        (
            f"{s.coverage:.2f}", f"{s.draft_levels}", f"{s.passes:.2f}", f"{s.draft_passes:.1f}",
            ms(s.seconds), f"{plain.seconds / s.seconds:.2f}",
        )
        for s in rows
    ]  # fmt: skip
    return table(("coverage", "levels", "passes", "head's", "ms", f"x {plain.name[:4]}."), cells)
