"""The figures of a calibration on episodes that it was not fitted on, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vla_ros.core.console import Table, show
from vla_ros.engine.decoding.draft_tree import Cost
from vla_ros.engine.decoding.drafters import CPU, FP32_CPU, GPU
from vla_ros_lab.decodings.calibration import plan_bins
from vla_ros_lab.roofline.calibration import QUANTILES, BinRow, FittedCalibration, table
from vla_ros_lab.roofline.rivals import Replayed, RivalCosts, paying, rivals, saved, static_sweep

if TYPE_CHECKING:
    from vla_ros_lab.heterospec import DraftedFrame

HEADS = ("an action", "passes", "cost in\npasses", "drafts\nverified", "accepted\na draft",
         "saved at equal\npasses, %")  # fmt: skip
#: costs of drafts as the engine takes them, and the least by a GPU's roofline
MACHINES = (
    RivalCosts("a GPU, as the engine takes it: a draft 0.08 of a pass, each node 0.01",
          GPU.prompt, GPU.alone),
    RivalCosts("a large GPU by its roofline: a node 0.005 behind a prompt, 0.001 behind a token",
          Cost(0.0, 0.005), Cost(0.0, 0.001)),
    RivalCosts("a CPU, bf16: a draft 0.08, each node 0.03", CPU.prompt, CPU.alone),
    RivalCosts("a CPU, fp32: a draft 0.08, each node 0.08, later 0.25",
          FP32_CPU.prompt, FP32_CPU.alone),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CalibrationFigures:
    """On held-out episodes: the bins, the rivals at the full size, what static trees of all sizes
    do, and per machine each rival as it is best there."""

    bins: list[BinRow]
    rivals: list[Replayed]
    sweep: list[Replayed]
    machines: dict[str, list[Replayed]]

    def as_json(self) -> dict[str, Any]:
        return {
            "bins": [asdict(row) for row in self.bins],
            "rivals": [{**asdict(r), "saved": saved(self.sweep, r)} for r in self.rivals],
            "static": [asdict(row) for row in self.sweep],
            "machines": {n: [asdict(r) for r in rows] for n, rows in self.machines.items()},
        }


def figures(
    fitted: FittedCalibration, fitted_on: Sequence[DraftedFrame], others: Sequence[DraftedFrame]
) -> CalibrationFigures:
    """Everything, judged on ``others``; what else must be tuned is tuned on ``fitted_on``."""
    trees = plan_bins(fitted.calibration).trees
    return CalibrationFigures(
        table(fitted, others, [[len(tree) for tree in state] for state in trees]),
        rivals(fitted, others, fitted_on),
        static_sweep(fitted, others),
        {costs.name: paying(fitted, others, fitted_on, costs) for costs in MACHINES},
    )


def show_tables(
    fitted: FittedCalibration, found: CalibrationFigures, frames: int, episodes: int
) -> None:
    """Print them."""
    about = fitted.calibration.about
    print(
        f"fitted on {about['frames']} frames of {about['episodes']} episodes;"
        f" judged on {frames} of {episodes} others\n"
    )
    heads = ("known, bin", "rounds\n%", "Phi", *(f"TCR\n{q} %" for q in QUANTILES), "levels",
             "taken", "nodes", "fixed\ntree")  # fmt: skip
    spare = ("fixed\ntree", f"TCR\n{QUANTILES[0]} %", f"TCR\n{QUANTILES[2]} %")
    show(Table(heads, map(_bin, found.bins), spare), "")
    lines = [_rival(row, saved(found.sweep, row)) for row in found.rivals]
    show(Table(HEADS, lines, ("cost in\npasses",)), "* knows the outcome: a bound", "")
    for name, rows in found.machines.items():
        show(name, Table(HEADS, [_rival(row, None) for row in rows], HEADS[-1:]), "")
        print(_verdict(rows), "\n")


def _verdict(rows: Sequence[Replayed]) -> str:
    """HeteroSpec against the best of those that need no calibration."""
    cost = {row.name: row.cost or 0.0 for row in rows}
    mine = cost.pop("heterospec")
    del cost["the same, not pruned"]
    best = min(cost, key=cost.__getitem__)
    gain = 100 * (cost[best] / mine - 1)
    return f"heterospec: {abs(gain):.1f} % {'less' if gain > 0 else 'more'} decoding than {best}"


def _bin(row: BinRow) -> tuple[str, ...]:
    low, high = row.entropy
    return (
        f"{row.known}, {row.bin}",
        f"{100 * row.share:.1f}",
        f"{low:.1f} - {high:.1f}",
        *(f"{q:.0f}" for q in row.rank),
        str(row.offered),
        f"{row.accepted:.2f}",
        str(row.nodes),
        str(row.fixed),
    )


def _rival(row: Replayed, less: float | None) -> tuple[str, ...]:
    return (
        f"{row.name} *" if row.bound else row.name,
        f"{row.passes:.2f}",
        "-" if row.cost is None else f"{row.cost:.2f}",
        f"{row.verified:.1f}",
        f"{row.accepted:.2f}",
        "-" if less is None or row.bound else f"{100 * less:.0f}",
    )
