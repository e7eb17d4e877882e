"""Weights in fewer bits: int8 by row, int4 by groups of 32, and BitNet's two bits.

``formats``: which part is in which format. ``matrices``: a weight, quantised, stored, multiplied.
``prepacked``: a weight of all its bits as a CPU multiplies it. ``linear``: the one product that
takes a tensor or any of these. ``ternary``: two bits.
"""
