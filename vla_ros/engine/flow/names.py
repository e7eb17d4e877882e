"""The kinds of flow policies, for those who only speak of them; no torch.

A test holds this list to what the families say of themselves
(:mod:`vla_ros.engine.flow.families`).
"""

from __future__ import annotations

#: ``kind`` of each config, in the order of the families.
FLOW_KINDS = ("pi0", "pi05", "smolvla", "evo1", "groot-n1.7", "groot-n1.6", "groot-n1.5")

#: In words, for messages that refuse anything else.
READ_AS_IS = f"{', '.join(FLOW_KINDS[:-1])} and {FLOW_KINDS[-1]}"
