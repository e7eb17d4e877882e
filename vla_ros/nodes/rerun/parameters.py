"""The rerun node's parameters."""

from __future__ import annotations

from vla_ros.nodes.common.parameters import Parameter as P

TABLE = (
    P("connect", "", "Address of a viewer that runs, such as rerun+http://HOST:9876/proxy; empty:"
      " one is started", fixed=True),
    P("out", "", "A file.rrd to write instead of showing", fixed=True),
    P("jpeg", 80, "Quality of the pictures, 1 to 100; 0: every pixel as it was", 0, 100,
      fixed=True),
    P("picture_rate_hz", 10.0, "Most pictures a second of each camera", 0.1, 1000.0, fixed=True),
    P("look_every_s", 1.0, "How often topics that came are looked for", 0.1, 60.0, fixed=True),
    P("niceness", 10, "How far it stands back behind all other processes", 0, 19, fixed=True),
)  # fmt: skip
