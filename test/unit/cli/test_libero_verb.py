"""vla-ros libero: prepares without a question, and says in one line what is missing."""

import builtins
import sys
from types import ModuleType

import pytest

from support.libero import make_assets, make_package, make_pro
from vla_ros.cli import doctor as libero_checks
from vla_ros.cli import main
from vla_ros.cli.doctor import Level, ok
from vla_ros.sim.libero import assets, suites
from vla_ros.sim.libero import assets as survey
from vla_ros.sim.libero.files import PRO_VARIABLE
from vla_ros.sim.libero.suites import PRO_SUITES, SUITES, base_of


@pytest.fixture
def user(tmp_path, monkeypatch):
    """LIBERO's files installed, its packages too; no assets, no configuration, no keyboard."""
    package = make_package(tmp_path / "site", {suite: [f"{suite}_a"] for suite in SUITES})
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for name in (assets.VARIABLE, PRO_VARIABLE, "LIBERO_CONFIG_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(suites, "find_package", lambda: package)
    monkeypatch.setattr(libero_checks, "check_libero_packages", lambda: ok("packages", "all"))
    monkeypatch.setattr(libero_checks, "check_trial", lambda task: ok("trial", task))
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("a question was asked"))
    return home


def run(capsys, *words):
    status = main.main(["libero", *words])
    return status, capsys.readouterr().out.splitlines()


def test_without_assets_it_says_how_to_get_them(user, capsys):
    status, lines = run(capsys, "setup")
    assert status == 1
    assert lines[1].startswith("FAIL  assets")
    assert "vla-ros libero setup --assets pypi" in lines[1]
    assert not (user / ".libero").exists()


def test_with_assets_every_suite_is_ready(user, capsys, tmp_path):
    folder = make_assets(tmp_path / "a", ("milk", "butter", "basket"))
    status, lines = run(capsys, "setup", "--assets", str(folder))
    assert status == 0
    assert [line.split()[1] for line in lines] == [
        *("packages", "assets", "config", "world", *SUITES, "trial"),
    ]
    assert lines[-1].endswith("libero_spatial/0")
    assert all(line.startswith("ok ") for line in lines)
    assert run(capsys, "setup")[0] == 0  # they are remembered


def test_a_suite_that_lacks_models_names_them(user, capsys, tmp_path):
    folder = make_assets(tmp_path / "a", ("milk", "basket"))
    status, lines = run(capsys, "setup", "--assets", str(folder))
    assert status == 1
    line = next(line for line in lines if "libero_goal" in line)
    assert "1 of 1 tasks cannot run: no model of butter" in line


def test_a_wrong_folder_is_one_line(user, capsys, tmp_path):
    status, lines = run(capsys, "setup", "--assets", str(tmp_path / "none"))
    assert status == 1
    assert lines[1:] == [f"FAIL  assets      {tmp_path / 'none'} is not there"]


def test_the_hub_is_asked_only_when_told_and_its_failure_is_one_line(user, capsys, monkeypatch):
    asked = []
    hub = ModuleType("huggingface_hub")

    def snapshot_download(**options):
        asked.append(options)
        raise ConnectionError("no route\nto the hub")

    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    run(capsys, "setup")
    assert not asked
    _, lines = run(capsys, "setup", "--assets", "hub")
    assert lines[1] == (
        "FAIL  assets      cannot download lerobot/libero-assets: no route to the hub"
    )
    assert asked[0]["repo_id"] == "lerobot/libero-assets"
    assert asked[0]["repo_type"] == "dataset"
    assert asked[0]["local_dir"] == str(user / ".cache" / "libero" / "assets")


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ({"robosuite", "cv2"}, "make libero"),
        ({"cv2"}, r"pip install '.[libero]'"),
    ],
)
def test_missing_packages_are_named(monkeypatch, missing, advice):
    monkeypatch.setattr(survey, "_found", lambda module: module not in missing)
    check = libero_checks.check_libero_packages()
    assert check.level is Level.FAIL
    assert "opencv-python-headless" in check.found
    assert check.advice.startswith(advice)
    check = libero_checks.check_libero()  # of the doctor: it is optional
    assert check.level is Level.WARN
    assert "(optional)" in check.found


def test_tasks_are_listed(user, capsys):
    status, lines = run(capsys, "tasks", "--suite", "libero_10")
    assert status == 0
    assert lines == ["libero_10/0        520  libero 10 a"]
    assert main.main(["libero", "tasks", "--suite", "other"]) == 2
    assert "libero has no suite 'other'" in capsys.readouterr().err


def test_what_cannot_be_probed_is_one_line_and_an_exit_status_of_its_own(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv(assets.VARIABLE, str(tmp_path / "none"))
    assert main.main(["libero", "probe"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_a_line_of_json_is_the_probes_only(user, capsys):
    assert main.main(["libero", "tasks", "--json"]) == 2
    assert "--json belongs to probe" in capsys.readouterr().err


def test_libero_pro_comes_from_its_own_wheel_only(user, tmp_path, capsys):
    folder = make_assets(tmp_path / "a", ("milk", "butter", "basket"))
    (tmp_path / "x.whl").write_bytes(b"something else")
    given = ("--assets", str(folder), "--pro", str(tmp_path / "x.whl"))
    status, lines = run(capsys, "setup", *given)
    assert status == 1
    told = [line for line in lines if "LIBERO-PRO" in line]
    assert len(told) == 1 and told[0].startswith("FAIL") and "SHA-256" in told[0]
    assert not any("_swap" in line for line in lines)
    assert main.main(["libero", "probe", "--pro"]) == 2
    assert "--pro belongs to setup" in capsys.readouterr().err


def test_libero_pros_suites_are_looked_at_where_its_files_are(user, tmp_path, capsys, monkeypatch):
    folder = make_assets(tmp_path / "a", ("milk", "butter", "basket"))
    for suite in PRO_SUITES:
        make_pro(tmp_path / "pro", suite, [f"{base_of(suite)}_a"], "do it")
    monkeypatch.setenv(PRO_VARIABLE, str(tmp_path / "pro"))
    status, lines = run(capsys, "setup", "--assets", str(folder))
    assert status == 0
    assert [line.split()[1] for line in lines[4:-1]] == [*SUITES, *PRO_SUITES]
    _, lines = run(capsys, "tasks", "--suite", "libero_goal_lan")
    assert lines == ["libero_goal_lan/0  300  do it"]
