"""Weights of -1, 0 and 1 times one scale (BitNet b1.58), two bits each, and their exact product.

``layout``: the bits. ``products``: int8 rows times such weights, by what a device does fastest.
``triton_kernel``: that product on a GPU. ``matrix``: a weight made, stored, multiplied.
"""
