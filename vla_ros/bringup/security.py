"""SROS 2: which keys a node uses, and whether keys are used at all.

The policies of the enclaves are in config/security; docs/how-to/secure-the-graph.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from vla_ros.errors import UserError

ENABLE = "ROS_SECURITY_ENABLE"
STRATEGY = "ROS_SECURITY_STRATEGY"
KEYSTORE = "ROS_SECURITY_KEYSTORE"
#: The enclave of a process whatever its arguments say, and of its children: empty is none.
OVERRIDE = "ROS_SECURITY_ENCLAVE_OVERRIDE"


def enclave_of(folder: str, node: str) -> str:
    """The enclave of ``node`` below ``folder``: /vla_ros and policy are /vla_ros/policy."""
    return f"/{folder.strip('/')}/{node}".replace("//", "/")


def check_enclave(folder: str, environment: Mapping[str, str]) -> None:
    """Raise UserError where enclaves are asked for and would protect nothing.

    rcl ignores an enclave unless ``ROS_SECURITY_ENABLE`` is exactly ``true``, and without
    ``Enforce`` a node whose keys are not found joins the graph without any (rcl, security.c).
    """
    if not folder:
        return
    if not folder.startswith("/"):
        raise UserError(f"enclave {folder!r}: must begin with /, such as /vla_ros")
    for name, wanted in ((ENABLE, "true"), (STRATEGY, "Enforce")):
        found = environment.get(name, "")
        if found != wanted:
            raise UserError(
                f"enclave {folder}: {name} is {found or 'not set'}, so keys would protect nothing:"
                f" export {name}={wanted}"
            )
    if not environment.get(KEYSTORE):
        raise UserError(f"enclave {folder}: {KEYSTORE} is not set: export where the keys are")
