"""Golden file of the last door: test/golden/gate.py's random actions as it limits them.

python tools/golden/make.py safety-gate .
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from golden.gate import NARROW, POSES, actions, gated
from vla_ros.runtime.safety import Limits


def main(target: Path) -> None:
    narrow, clamped, far = gated(actions(1, 0.06), NARROW)
    wide, _, _ = gated(actions(2, 0.06), Limits())
    poses, poses_clamped, _ = gated(actions(3, 0.5), POSES)
    np.savez_compressed(
        target,
        narrow=narrow,
        clamped=clamped,
        far=far,
        wide=wide,
        poses=poses,
        poses_clamped=poses_clamped,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
