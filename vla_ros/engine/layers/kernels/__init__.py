"""Kernels with a torch reference beside each; the reference is what runs where Triton does not."""
