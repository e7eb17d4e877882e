"""What of LIBERO is there: for `vla-ros doctor` and `vla-ros libero setup`."""

from __future__ import annotations

from vla_ros.cli.doctor.checks import Check, Level, fail, ok, try_python, warn


def libero_packages() -> Check:
    """LIBERO's own packages and what they import."""
    from vla_ros.sim.libero.survey import BENCHMARK, missing_packages, version

    missing = missing_packages()
    if not missing:
        return ok("packages", ", ".join(f"{name} {version(name)}" for name in BENCHMARK))
    advice = "make libero (in the checkout)"
    if not set(missing) & set(BENCHMARK):
        advice = "pip install '.[libero]' (in the checkout)"
    return fail("packages", f"not installed: {', '.join(missing)}", advice)


def libero() -> Check:
    """The benchmark can be loaded, its assets are there. Builds no task: that takes seconds."""
    packages = libero_packages()
    if packages.level is not Level.OK:
        return warn("LIBERO", f"{packages.found} (optional)", packages.advice)
    code = (
        "from vla_ros.sim.env import SimError\n"
        "from vla_ros.sim.factory import EnvConfig\n"
        "try:\n"
        "    spec = EnvConfig('libero')().spec\n"
        "except SimError as error:\n"
        "    raise SystemExit(str(error))\n"
        "note = f'; {spec.note}' if spec.note else ''\n"
        "print(f'{len(spec.tasks)} tasks{note}')"
    )
    good, text = try_python(code, 120.0)
    if not good:
        return warn("LIBERO", text, "vla-ros libero setup")
    return ok("LIBERO", f"{packages.found}, {text}")


def trial(task: str) -> Check:
    """One task is built and seen. The first time on a machine Numba compiles meanwhile."""
    code = (
        "import time\n"
        "from vla_ros.sim.env import SimError\n"
        "from vla_ros.sim.factory import EnvConfig\n"
        "start = time.perf_counter()\n"
        "try:\n"
        "    env = EnvConfig('libero')()\n"
        f"    env.reset({task!r}, 0)\n"
        "    built = time.perf_counter()\n"
        "    for _ in range(5):\n"
        "        env.step([0.0] * 7)\n"
        "except SimError as error:\n"
        "    raise SystemExit(str(error))\n"
        "ms = (time.perf_counter() - built) * 200\n"
        f"print(f'{task} in {{built - start:.0f}} s, then {{ms:.0f}} ms a step with two images')"
    )
    good, text = try_python(code, 600.0)
    return ok("trial", text) if good else fail("trial", text, "vla-ros doctor")
