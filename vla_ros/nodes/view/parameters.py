"""The view node's parameters."""

from __future__ import annotations

from vla_ros.nodes.common.images import TRANSPORTS
from vla_ros.nodes.common.parameters import Parameter as P

TABLE = (
    P("host", "127.0.0.1", "Address to serve on; elsewhere than on this machine it asks for a"
      " token", fixed=True),
    P("port", 8080, "Port to serve on; the next free one where it is taken", 1, 65_535, fixed=True),
    P("token", "", "What a browser must know; empty: none on this machine, else a new one each"
      " start, which stands in the address that is logged", fixed=True),
    P("cameras", ["image", "wrist_image"], "Topics of the pictures", fixed=True),
    P("image_transport", "raw", "Topics of the cameras: as they are, or with /compressed",
      choices=TRANSPORTS, fixed=True),
    P("suite", "", "libero: whose sentences are suggested; empty: those of all suites", fixed=True),
    P("draw_rate_hz", 4.0, "How often the page is drawn, while somebody looks", 0.2, 20.0,
      fixed=True),
    P("niceness", 10, "How far it stands back behind all other processes", 0, 19, fixed=True),
)  # fmt: skip
