"""BitVLA's checkpoints: BitNet b1.58 and BitSigLIP under OpenVLA-OFT's heads.

Source: github.com/ustcwhy/BitVLA. Its folders are transformers' Llava with other classes; what they
publish is bfloat16 weights that are made ternary in every product. Here that is done once, while
they are read. ``config``: config.json. ``names``: the authors' tensors and this engine's.
``reading``: one to the other. ``random``: folders, and whole models, with drawn weights.
"""
