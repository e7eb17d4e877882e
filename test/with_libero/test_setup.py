"""`vla-ros libero setup` and the doctor, for a user who has done nothing yet."""

import os
import subprocess
import sys

import pytest
import yaml

from vla_ros.sim.libero.files import cache_folder


@pytest.fixture
def vla_ros(tmp_path):
    """Runs the program with an empty home and no keyboard; what is unpacked already is kept."""
    environ = {name: value for name, value in os.environ.items() if name != "LIBERO_CONFIG_PATH"}
    environ |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache_folder().parents[1])}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "vla_ros", *words],
            env=environ,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=170,
        )

    return run


def test_setup_prepares_the_configuration_and_tries_a_task(vla_ros, tmp_path):
    done = vla_ros("libero", "setup")
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line[:1] != " "}
    assert lines["trial"].startswith("ok ") and "ms a step with two images" in lines["trial"]
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10"):
        assert lines[suite].startswith("ok "), lines[suite]
    complete = all(line.startswith("ok ") for line in lines.values())
    assert done.returncode == (0 if complete else 1)
    config = yaml.safe_load((tmp_path / ".libero" / "config.yaml").read_text())
    assert all(os.path.isdir(config[key]) for key in ("assets", "bddl_files", "init_states"))
