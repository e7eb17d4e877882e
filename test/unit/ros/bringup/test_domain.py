"""ROS domains: local, free, and never given to two at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from vla_ros.core.errors import UserError
from vla_ros.ros.bringup import environment as domain


def test_the_domain_is_local_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_STATIC_PEERS"):
        monkeypatch.setenv(name, "7")
    first = domain.free_domain()
    assert 1 <= first <= domain.LAST_DOMAIN
    domain.isolate(first)
    assert os.environ["ROS_DOMAIN_ID"] == str(first)
    assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert "ROS_STATIC_PEERS" not in os.environ
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as participant:
        participant.bind(("", 7410 + 250 * first))
        assert domain.free_domain() != first
        with domain.leased_domain() as leased:
            assert leased != first


def test_a_leased_domain_is_nobody_else_s_until_it_is_given_back() -> None:
    with domain.leased_domain() as first:
        with domain.leased_domain() as second:
            assert second != first
        with domain.leased_domain() as again:
            assert again == second


def test_a_lease_truncates_nothing_that_another_user_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    victim = tmp_path / "victim.txt"
    victim.write_text("precious\n")
    folder = tmp_path / f"vla_ros_domains_{os.getuid()}"
    folder.mkdir(mode=0o755)
    for number in range(1, domain.LAST_DOMAIN + 1):
        (folder / str(number)).symlink_to(victim)
    with domain.leased_domain():
        assert victim.read_text() == "precious\n"
    folder.chmod(0o700)  # as if it were ours: no link in it is followed
    with pytest.raises(UserError, match="all ROS domains"), domain.leased_domain():
        pass
    assert victim.read_text() == "precious\n"
