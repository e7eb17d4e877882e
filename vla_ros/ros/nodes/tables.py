"""Tables of parameters of all nodes; apart, since it imports the nodes and no node imports it.

A node judges its values as it starts and as it is configured, when others have started already;
`vla-ros up` asks here before anything starts, with the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vla_ros.core import extensions
from vla_ros.core.types import PolicyInfo
from vla_ros.engine.families.folder import describe_folder
from vla_ros.engine.io.hub import look
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.ros.common.parameters import Parameter, check_values, given_value
from vla_ros.ros.nodes.bridge.node import config_of
from vla_ros.ros.nodes.policy import parameters as policy
from vla_ros.ros.nodes.policy.outputs import joint_outputs
from vla_ros.ros.nodes.policy.runtime import refuse_unless_met
from vla_ros.ros.nodes.policy.settings import validate
from vla_ros.runtime.control.queue import Chunking


def table_of(executable: str) -> tuple[Parameter, ...]:
    """Parameters of a node, by its folder here; of the policy node those of cameras main and wrist
    only, since ``camera_roles`` makes the others."""
    if executable == "policy":
        return policy.TABLE
    found: tuple[Parameter, ...] = import_module(f"vla_ros.ros.nodes.{executable}.node").TABLE
    return found


def check_given(executable: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError, one line that names the parameter, for a value that the node would refuse
    as it starts: one beyond its range, none of its choices, none at all.

    ``given``: values by name, of the types of the table, whole numbers for fractions included; a
    name that is not in the table is passed over.
    """
    table = table_of(executable)
    if executable == "policy":
        _policy_values(given)
    else:
        check_values(table, _complete(table, given))


def check_start(executable: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError or UserError, in one line, for values that the node would refuse once it
    runs: those that contradict each other, a task, a checkpoint that is not there. Reads no
    weights, downloads nothing.

    ``given``: values that :func:`check_given` allows.
    """
    if executable == "bridge":
        values = _complete(table_of(executable), given)
        config_of(values).check_task(values["task"], values["initial_state"])
    elif executable == "policy":
        values = _policy_values(given)
        spec, limits = validate(values, bool(given.get("use_sim_time")))
        # An age that no policy keeps, however fast it is.
        quickest = PolicyInfo(spec.name)
        refuse_unless_met(limits, quickest, 0.0, Chunking(), joint_outputs(values))
        _check_checkpoint(spec)


def _check_checkpoint(spec: PolicySpec) -> None:
    if spec.name not in ("vla", "lerobot"):
        return
    name = spec.checkpoint
    folder = look(name)
    if folder is not None and spec.name == "vla" and not extensions.claims(extensions.FAMILIES):
        for reason in describe_folder(folder).lacks:
            raise PolicyRefused(reason if name in reason else f"{name}: {reason}")


def _policy_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a policy node, each allowed by itself. ValueError: one is not."""
    values = _complete(policy.TABLE, given)
    policy.check_parameters(policy.TABLE, values)
    cameras = policy.camera_rows(values)
    values |= _complete(cameras, given)
    policy.check_parameters((*policy.TABLE, *cameras), values)
    return values


def _complete(table: tuple[Parameter, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every row: the given one, else the default."""
    return {
        row.name: given_value(row, given[row.name]) if row.name in given else row.default
        for row in table
    }
