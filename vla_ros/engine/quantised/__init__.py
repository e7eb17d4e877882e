"""Weights in fewer bits: int8 and fp8 by row, int4 by groups of 32, BitNet's two bits.

``formats``: which part is in which format. ``matrices``: a weight, quantised, stored, multiplied;
``int8``, ``int4``, ``fp8``: each format; ``ways``: which of torch's kernels run on a device.
``prepacked``: a weight of all its bits as a CPU multiplies it. ``ternary``: two bits. The one
product that takes a tensor or any of these is :func:`.matrices.linear`.
"""
