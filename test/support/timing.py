"""Times that tests state: two limits each, one measurement, no second try.

`make test` runs on machines that do other work meanwhile: there a test holds the rule by what such
work does not change (the nodes' own stamps, counts, two figures of one run) and a time only to a
``loaded`` limit, beyond which something is wrong whatever else runs. `make test-timing` is for a
machine that does nothing else: it holds the same measurements to the ``quiet`` limits, which are
those that the documentation states. The summary lists what was measured.

    judge("first STOP after the camera was lost", seconds, quiet=A + T, loaded=A + 1.0)
"""

from __future__ import annotations

import os

#: Set by `make test-timing`.
QUIET = os.environ.get("VLA_ROS_TIMING") == "quiet"

#: The largest that was measured in this run of each test and thing, for the summary.
told: dict[tuple[str, str], tuple[float, str]] = {}


def bound(*, quiet: float, loaded: float) -> float:
    """The limit that this run is held to."""
    assert quiet <= loaded, "a machine that does other work is not held to more"
    return quiet if QUIET else loaded


def judge(what: str, measured: float, *, quiet: float, loaded: float, unit: str = "s") -> None:
    """Tell what was measured, and fail where it is above the limit."""
    limit = bound(quiet=quiet, loaded=loaded)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2]
    kind = "quiet" if QUIET else "loaded"
    line = f"{what}: {measured:.3g} {unit}, at most {limit:.3g} ({kind}; quiet {quiet:.3g})"
    print(line)
    told[test, what] = max(told.get((test, what), (measured, line)), (measured, line))
    assert measured <= limit, line
