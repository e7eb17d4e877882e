"""Evo-1: InternVL3's fused tokens as the context of a head of cross-attention blocks."""
