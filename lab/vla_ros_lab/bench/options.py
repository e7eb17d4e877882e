"""What a benchmark measures; fields with a text are flags, so there is no torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest
from vla_ros.engine.options import EngineOptions

if TYPE_CHECKING:
    from vla_ros.policies.base import PolicySpec

INSTRUCTION = "pick up the red cube and place it on the plate"
UNBATCHED, BATCHED, WORKERS = WAYS = ("unbatched", "batched", "workers")


def flag(default: Any, text: str, **more: Any) -> Any:
    """A field that is a flag; ``more`` as in :func:`vla_ros.cli.arguments.add_fields`."""
    return field(default=default, metadata={"text": text, **more})


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure; fields with a text are flags of `vla-ros bench`.

    ``engine``: of the policy; of a token policy its decoding is what the rows are drafted and
    compared with. ``compiled``: the parts that torch.compile makes. ``lerobot``: an interpreter
    with LeRobot, "" where there is none.
    """

    engine: EngineOptions = EngineOptions(
        "random:cpu", dtype="bfloat16", decoding="autoregressive", num_threads=1
    )
    draft: str = flag("random:small", "checkpoint of the draft model", metavar="C")
    warm_up: int = flag(10, "frames before the clock runs (10; flow: 2)")
    timed: int = flag(100, "frames measured (100; flow: 5)")
    tokens: int = flag(7, "tokens of an action of random weights (7)")
    rows: tuple[str, ...] = flag((), "comma-separated rows (all)", each=str)
    head: str = flag(
        "",
        "of the rows that draft with a head (draft_head in the checkpoint; else one of random"
        " weights)",
        metavar="DIR",
    )
    frames: str = flag(
        "", ".npz with uint8 images [N, h, w, 3] (a synthetic scene)", metavar="FILE"
    )
    lerobot: str = flag(
        "",
        "flow: an interpreter with LeRobot (that of `vla-ros lerobot setup`)",
        flag="lerobot-python",
        metavar="PYTHON",
    )
    cpu_clock: bool = True
    instruction: str = INSTRUCTION
    compiled: tuple[str, ...] = ()

    def refuse_unknown(self, known: Sequence[str]) -> None:
        """UserError: a row that is not among these."""
        if unknown := sorted(set(self.rows) - set(known)):
            near = nearest(unknown[0], known, f": there are {', '.join(known)}")
            raise UserError(f"rows {', '.join(unknown)} are unknown{near}")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What to measure: ``sizes`` robots at a time; ``warm_up`` frames of each are not counted,
    ``timed`` are."""

    spec: PolicySpec
    sizes: tuple[int, ...]
    rate_hz: float = flag(10.0, "fleet: frames a second (10)", flag="rate", metavar="HZ")
    max_age_s: float = flag(
        0.0,
        "fleet: what each robot asks the server to keep to (0: nothing)",
        flag="max-age",
        metavar="S",
    )
    warm_up: int = 5
    timed: int = 50
    ways: tuple[str, ...] = WAYS

    @property
    def seconds(self) -> float:
        """Time in which the frames that are counted are shown."""
        return self.timed / self.rate_hz

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or max(self.sizes) > 256:
            raise UserError(f"--fleet {','.join(map(str, self.sizes))}: give 1 to 256 robots each")
        if not 0.01 <= self.rate_hz <= 1000 or not 0 <= self.max_age_s <= 3600:
            raise UserError("--rate is 0.01 to 1000 Hz, --max-age 0 to 3600 s")
        if unknown := set(self.ways) - set(WAYS):
            raise UserError(f"--rows {', '.join(sorted(unknown))}: there are {', '.join(WAYS)}")
