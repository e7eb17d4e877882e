"""vla-ros: usage errors are one line and exit status 2; verbs load only what they need."""

import os
import re
import subprocess
import sys

import pytest

from vla_ros.cli import main
from vla_ros.core.errors import UserError


def run(capsys, *words):
    try:
        status = main.main(list(words))
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        ((), "VERB"),
        (("frobnicate",), "frobnicate"),
        (("--bogus",), "VERB"),
        (("up",), "graph"),
        (("up", "sim", "--bogus"), "--bogus"),
        (("up", "no_such_graph"), "there are libero, lockstep, policy, sim, so101"),
        (("up", "/"), "directory"),
        (("up", "policy", "-p", "policy.control_rate=3"), "did you mean 'control_rate_hz'"),
        (("up", "policy", "-p", "polcy.mode=1"), "no node 'polcy'"),
        (("up", "policy", "-p", "nonsense"), "NODE.PARAMETER=VALUE"),
        (("up", "policy", "-r", "image"), "FROM=TO"),
        (("up", "policy", "-r", "nobody:a=b"), "no node 'nobody'"),
        (("up", "policy", "--for", "-1"), "above 0"),
        (("up", "policy", "--log-level", "loud"), "loud"),
        (("doctor", "--color"), "--color"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(capsys, words, needle):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert needle in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("verb", main.available())
def test_help_of_each_verb_explains_and_gives_examples(capsys, verb):
    status, out, _ = run(capsys, verb, "--help")
    assert status == 0
    assert "usage: vla-ros" in out
    assert len(out.splitlines()) > 8


def test_the_list_of_verbs(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert {"demo", "up", "doctor"} <= set(main.available())
    assert all(f"\n  {verb} " in out for verb in main.available())


def test_every_file_in_main_verbs_has_the_two_functions():
    import importlib

    for path, text in main.available().values():
        module = importlib.import_module(path)
        assert text
        assert callable(module.add_parser) and callable(module.run)


def test_a_user_error_of_a_verb_is_status_2(capsys, monkeypatch):
    from vla_ros.cli import doctor

    def run_badly(args):
        raise UserError("the file is empty; write something into it")

    monkeypatch.setattr(doctor, "run", run_badly)
    status, _, err = run(capsys, "doctor")
    assert (status, err) == (2, "vla-ros doctor: the file is empty; write something into it\n")


def test_help_imports_neither_ros_nor_torch():
    code = (
        "import sys\n"
        "from vla_ros.cli.main import main\n"
        "for words in (['--help'], ['up', '--help'], ['demo', '--help'], ['doctor', '--help']):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "heavy = {'rclpy', 'torch', 'mujoco', 'transformers', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_is_that_of_package_xml(capsys):
    from xml.etree import ElementTree

    from vla_ros import __version__
    from vla_ros.core.resources import share

    assert __version__ == ElementTree.parse(share() / "package.xml").findtext("version")
    assert run(capsys, "--version")[1] == f"vla-ros {__version__}\n"


def test_a_reader_that_goes_away_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "vla_ros", "up", "policy", "--list"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert "Traceback" not in done.stderr


def test_help_of_up_lists_every_shipped_graph_with_its_own_words(capsys):
    from vla_ros.core.resources import share

    _, out, _ = run(capsys, "up", "--help")
    names = [p.name.removesuffix(".up.yaml") for p in (share() / "config").glob("*.up.yaml")]
    assert {"sim", "policy", "lockstep", "libero"} <= set(names)
    lines = out.splitlines()
    told = {line.split()[0]: line for line in lines[lines.index("graphs:") + 1 :] if line}
    assert set(names) <= set(told)
    assert "A simulated robot, a policy that moves it, and a monitor" in told["sim"]
    assert "the simulation waits for every answer" in told["lockstep"]


def test_help_of_demo_lists_every_task_and_every_decoding(capsys):
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    from vla_ros.engine.options import DECODINGS
    from vla_ros.sim.tasks import COLORS, TASKS

    _, out, _ = run(capsys, "demo", "--help")
    told = out[out.index("\ntasks") :].split("\n\n")[0]
    words = re.findall(r"[A-Za-z_]+_[A-Za-z_]+", told)
    patterns = [word for word in words if "C" in word]
    found = {
        pattern.replace("C", c).replace("D", d)
        for pattern in patterns
        for c in COLORS
        for d in COLORS
        if "D" not in pattern or c != d
    }
    assert found == {task.name for task in TASKS}
    assert all(f" {color}" in told for color in COLORS)
    decodings = out[out.index("\ndecodings") :].split("\n\n")[0]
    assert all(re.search(rf"\b{name}\b", decodings) for name in DECODINGS)


@pytest.mark.parametrize("verb", ["demo", "up", "record", "bench", "eval", "collect", "train"])
def test_help_fits_a_narrow_terminal(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, verb, "--help")
    assert [line for line in out.splitlines() if len(line) > 100] == []


WITHOUT = """
import sys
sys.modules[{module!r}] = None
from vla_ros.cli.main import main
sys.exit(main({words!r}))
"""


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [("torch", ["demo"], "model"), ("rosbags", ["replay", "."], "replay")],
)
def test_a_package_that_is_not_installed_is_one_line_that_says_what_brings_it(
    module, words, extra, tmp_path
):
    code = WITHOUT.format(module=module, words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"[{extra}]" in line and module in line


def test_what_no_extra_brings_keeps_its_traceback(monkeypatch):
    def runs(args):
        raise ModuleNotFoundError("No module named 'vla_ros.nothing'", name="vla_ros.nothing")

    monkeypatch.setattr("vla_ros.cli.doctor.run", runs)
    with pytest.raises(ModuleNotFoundError):
        main.main(["doctor"])
