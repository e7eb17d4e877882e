"""vla-ros doctor: each line has a level, and what is wrong says what to do."""

import json
import re
from pathlib import Path

import pytest

from vla_ros.cli import doctor as checks
from vla_ros.cli import doctor as doctor
from vla_ros.cli import doctor as model
from vla_ros.cli import doctor as ros
from vla_ros.cli import main
from vla_ros.cli.doctor import Level
from vla_ros.ros.bringup.environment import PROFILES

ROOT = Path(__file__).resolve().parents[3]


def args(**given):
    values = {"checkpoint": None, "clean": False, "json": False} | given
    return type("Args", (), values)


def test_levels_decide_the_exit_status(monkeypatch, capsys):
    good, bad = checks.ok("A", "fine"), checks.fail("B", "broken", "mend it")
    monkeypatch.setattr(doctor, "_checks", lambda _: iter([good]))
    assert doctor.run(args()) == 0
    monkeypatch.setattr(doctor, "_checks", lambda _: iter([good, bad]))
    assert doctor.run(args()) == 1
    out = capsys.readouterr().out
    assert "FAIL  B           broken" in out
    assert "-> mend it" in out


def test_json_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_checks", lambda _: iter([checks.warn("A", "slow", "wait")]))
    assert main.main(["doctor", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line == {
        "failed": 0,
        "checks": [{"name": "A", "level": "warn", "found": "slow", "advice": "wait"}],
    }


@pytest.mark.parametrize(
    ("variables", "level", "needle"),
    [
        ({}, Level.OK, "fastdds_localhost.xml"),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}, Level.OK, "fastdds_shm.xml"),
        ({"ROS_DISTRO": "jazzy"}, Level.OK, "export FASTRTPS_DEFAULT_PROFILES_FILE="),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": "/none.xml"}, Level.FAIL, "/none.xml"),
        ({"FASTRTPS_DEFAULT_PROFILES_FILE": "/two.xml"}, Level.FAIL, "/two.xml"),
        ({"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}, Level.WARN, "cyclone"),
    ],
)
def test_the_dds_profile(monkeypatch, variables, level, needle):
    for name in (*PROFILES, "RMW_IMPLEMENTATION", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check = ros.check_middleware()
    assert check.level is level
    assert needle in check.found


def test_a_profile_with_a_small_segment_warns(monkeypatch, tmp_path):
    path = tmp_path / "p.xml"
    path.write_text("<dds><segment_size>524288</segment_size></dds>")
    monkeypatch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", str(path))
    assert ros.check_middleware().level is Level.WARN
    path.write_text("<dds><segment")
    assert ros.check_middleware().level is Level.FAIL


@pytest.mark.parametrize(
    ("domain", "reach", "level"),
    [
        ("7", "LOCALHOST", Level.OK),
        ("0", "", Level.OK),
        ("7", "SUBNET", Level.WARN),
        ("400", "", Level.FAIL),
        ("x", "", Level.FAIL),
    ],
)
def test_who_can_see_the_graph(monkeypatch, domain, reach, level):
    monkeypatch.setenv("ROS_DOMAIN_ID", domain)
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", reach)
    assert ros.check_discovery().level is level


@pytest.mark.parametrize(
    ("given", "level", "says"),
    [
        ({}, Level.OK, "SROS 2 is off"),
        ({"ENABLE": "true"}, Level.FAIL, "STRATEGY is not set"),
        ({"ENABLE": "true", "STRATEGY": "Permissive"}, Level.FAIL, "is Permissive"),
        ({"ENABLE": "true", "STRATEGY": "Enforce"}, Level.FAIL, "holds no enclave"),
        ({"ENABLE": "true", "STRATEGY": "Enforce", "KEYSTORE": "."}, Level.OK, "1 enclaves"),
    ],
)
def test_security_that_protects_nothing_is_a_failure(monkeypatch, tmp_path, given, level, says):
    enclave = tmp_path / "enclaves" / "vla_ros" / "policy"
    enclave.mkdir(parents=True)
    (enclave / "permissions.p7s").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROS_DISTRO", "kilted")
    for name in ("ENABLE", "STRATEGY", "KEYSTORE"):
        monkeypatch.setenv(f"ROS_SECURITY_{name}", given.get(name, ""))
    check = ros.check_security()
    assert check.level is level
    assert says in check.found
    monkeypatch.delenv("ROS_DISTRO")
    assert (ros.check_security().level is Level.FAIL) == (given != {}), (
        "the wheels have no security"
    )


def test_a_crash_or_a_hang_of_what_is_tried_is_a_finding():
    assert checks.try_python("print('a'); print('b')") == (True, "b")
    good, text = checks.try_python("import os; os.abort()")
    assert not good and "signal 6" in text
    good, text = checks.try_python("import time; time.sleep(30)", timeout_s=0.5)
    assert not good and "0.5 s" in text
    good, text = checks.try_python("raise ValueError('no such thing')")
    assert not good and text == "ValueError: no such thing"


def test_a_missing_checkpoint_is_named():
    pytest.importorskip("torch", reason="torch is not installed")
    check = model.check_checkpoint("/no/such/model")
    assert check.level is Level.FAIL
    assert "/no/such/model" in check.found


def named_in_the_docs():
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    text = "\n".join(page.read_text() for page in pages)
    return sorted(set(re.findall(r"random:[a-z][a-z0-9.-]*[a-z0-9]", text)))


@pytest.mark.parametrize("name", named_in_the_docs())
def test_every_random_checkpoint_that_the_docs_name_has_a_report(name, capsys):
    """Nothing is made for it: also those of published size."""
    pytest.importorskip("torch", reason="torch is not installed")
    exec(model._of_random(name), {})
    assert re.fullmatch(
        rf"{re.escape(name)}, made when it is loaded: \d+ M parameters, [\d.]+ GB in bf16, \S+\n",
        capsys.readouterr().out,
    )


def test_an_unknown_random_checkpoint_is_one_line_with_what_there_is():
    pytest.importorskip("torch", reason="torch is not installed")
    check = model.check_checkpoint("random:nonsense")
    assert check.level is Level.FAIL and "\n" not in check.found
    assert "unknown; there are" in check.found and "random:evo1-small" in check.found
