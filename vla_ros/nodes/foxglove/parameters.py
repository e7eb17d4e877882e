"""The foxglove node's parameters."""

from __future__ import annotations

from vla_ros.nodes.common.parameters import Parameter as P

TABLE = (
    P("host", "127.0.0.1", "Address to serve on. There is no token and no encryption: whoever"
      " reaches it sees everything", fixed=True),
    P("port", 8765, "Port to serve on; 0: any that is free", 0, 65_535, fixed=True),
    P("say", False, "Let clients say the instruction. Any web page that is open on a machine that"
      " reaches the port can do so then", fixed=True),
    P("look_every_s", 1.0, "How often topics that came or went are looked for", 0.1, 60.0,
      fixed=True),
    P("niceness", 10, "How far it stands back behind all other processes", 0, 19, fixed=True),
)  # fmt: skip
