"""Checkpoints: reading, checking, converting and making them.

``openvla``: a directory read, checked and written; ``config``, ``parse``: its description;
``shapes``: the tensors it must have; ``weights``: its safetensors. ``hub``, ``shipped``,
``random``, ``manifest``: where it comes from, and whether it is that. ``convert``: other people's
releases; ``bitvla``: one that is read as it comes. ``quantise``, ``quantised``: fewer bits.
``draft_head``: a head beside it.
"""
