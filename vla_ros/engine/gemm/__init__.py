"""Products with weights of all their bits: the ways there are, and which is the fastest.

``ways``: what is worth a try for how many rows. ``triton_kernels``: their kernels. ``tuner``: times
them beside torch's product while passes are captured, and remembers. ``choose``: whether there is
anything to choose from on a device.
"""
