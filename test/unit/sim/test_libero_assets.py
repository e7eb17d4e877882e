"""LIBERO's assets and configuration are found and prepared, never asked for."""

import hashlib
import io
import tarfile

import pytest
import yaml

from support.libero import BDDL, make_assets, make_package
from vla_ros.sim.env import SimError
from vla_ros.sim.libero import assets as module
from vla_ros.sim.libero.assets import (
    PLACEHOLDER_NOTE,
    VARIABLE,
    categories,
    config_file,
    find_assets,
    missing_objects,
    placeholder_note,
    read_config,
    unpacked,
    usable_folder,
    write_config,
)
from vla_ros.sim.libero.suites import SUITES, tasks_of


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user without anything."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (VARIABLE, "LIBERO_CONFIG_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def package(tmp_path):
    return make_package(tmp_path / "site", {suite: [f"{suite}_a"] for suite in SUITES})


def pack(folder, archive):
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder, ".")
    return archive


def test_where_they_are_looked_for_and_in_which_order(home, package, tmp_path, monkeypatch):
    with pytest.raises(SimError, match=r"assets .* are missing: run `vla-ros libero setup"):
        find_assets(package)
    places = {
        "hub": home / ".cache" / "libero" / "assets",
        "package": package / "assets",
        "configured": tmp_path / "configured",
        "given": tmp_path / "given",
    }
    for name in ("hub", "package"):
        make_assets(places[name])
        assert find_assets(package) == places[name]
    write_config(config_file(), package, make_assets(places["configured"]))
    assert find_assets(package) == places["configured"]
    monkeypatch.setenv(VARIABLE, str(make_assets(places["given"])))
    assert find_assets(package) == places["given"]


def test_a_wrong_place_that_was_given_is_not_passed_over(home, package, tmp_path, monkeypatch):
    make_assets(home / ".cache" / "libero" / "assets")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(SimError, match=f"{VARIABLE}: .*none is not there"):
        find_assets(package)
    (tmp_path / "scenes").mkdir()
    with pytest.raises(SimError, match="no folder of LIBERO assets: it lacks articulated_objects"):
        usable_folder(tmp_path)


def test_an_archive_is_unpacked_once_into_the_cache(home, package, tmp_path, monkeypatch):
    archive = pack(make_assets(tmp_path / "a", ("milk",)), tmp_path / "a.tar.xz")
    monkeypatch.setenv(VARIABLE, str(archive))
    found = find_assets(package)
    assert found.is_relative_to(home / ".cache" / "vla_ros" / "libero")
    assert (found / "stable_hope_objects" / "milk" / "milk.xml").is_file()
    monkeypatch.setattr(tarfile, "open", None)  # a second time would fail
    assert find_assets(package) == found
    assert [path.name for path in found.parent.iterdir()] == [found.name]


def test_an_archive_cannot_write_outside(tmp_path):
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(SimError, match="cannot unpack"):
        unpacked(archive, tmp_path / "cache")
    assert not (tmp_path / "outside").exists() and not list((tmp_path / "cache").iterdir())


def test_archives_of_something_else_and_torn_ones(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(SimError, match="holds no LIBERO assets at its top"):
        unpacked(pack(tmp_path / "x", tmp_path / "x.tar"), tmp_path / "cache")
    (tmp_path / "torn.tar").write_bytes(b"no archive")
    with pytest.raises(SimError, match="cannot unpack"):
        unpacked(tmp_path / "torn.tar", tmp_path / "cache")


def test_placeholders_are_recognized(tmp_path, monkeypatch):
    folder = make_assets(tmp_path / "a")
    texture = folder / "textures" / "bowl.png"
    texture.write_bytes(b"ours")
    assert placeholder_note(folder) == ""
    begins = "9f01c7be8c3d"  # not its hash
    monkeypatch.setattr(module, "_PLACEHOLDERS", {"textures/bowl.png": begins})
    assert placeholder_note(folder) == ""
    begins = hashlib.sha256(b"ours").hexdigest()[:16]
    monkeypatch.setattr(module, "_PLACEHOLDERS", {"textures/bowl.png": begins})
    assert placeholder_note(folder) == PLACEHOLDER_NOTE


def test_the_configuration_has_every_entry_that_liberos_import_wants(home, package, tmp_path):
    write_config(config_file(), package, tmp_path)
    found = yaml.safe_load((home / ".libero" / "config.yaml").read_text())
    assert set(found) == {"benchmark_root", "bddl_files", "init_states", "datasets", "assets"}
    assert found["assets"] == str(tmp_path)
    assert found["bddl_files"] == str(package / "bddl_files")


def test_what_a_user_changed_is_kept_and_what_is_gone_is_not(home, package, tmp_path):
    (home / ".libero").mkdir(parents=True)
    mine = {"datasets": str(tmp_path), "bddl_files": "/gone", "assets": "/gone"}
    config_file().write_text(yaml.safe_dump(mine))
    write_config(config_file(), package, tmp_path)
    found = read_config(config_file())
    assert found["datasets"] == str(tmp_path)
    assert found["bddl_files"] == str(package / "bddl_files")


@pytest.mark.parametrize("text", ["a: [", "- list", "\x00"])
def test_a_broken_configuration_is_one_line(home, text):
    config_file().parent.mkdir(parents=True)
    config_file().write_text(text)
    with pytest.raises(SimError, match=r"config.yaml") as caught:
        read_config(config_file())
    assert "\n" not in str(caught.value)


def test_what_a_task_needs_is_read_from_its_file(package, tmp_path):
    bddl = tmp_path / "x.bddl"
    bddl.write_text(BDDL)
    assert categories(bddl) == {"milk", "butter", "basket"}
    task = tasks_of("libero_object", package)
    assets = make_assets(tmp_path / "a", ("milk", "basket"))
    assert missing_objects(task, package, assets) == ("butter",)
