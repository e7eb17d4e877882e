"""Decodings of the lab, which the engine finds by the entry points `vla_ros.decodings`."""
