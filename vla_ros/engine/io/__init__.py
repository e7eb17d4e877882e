"""Files of policies: found, checked, read, converted, quantized, drawn at random.

``hub``: where a checkpoint comes from, and whether it is that; ``foreign``: what is not read as it
stands. ``config`` (token policies) and ``flow_config``: what config.json says; ``processors``: from
images, states and actions to the model's numbers; ``tokens``: prompts and action tokens.
``weights``: the one loader; ``quantize``: fewer bits. ``openvla``, ``bitvla``, ``lerobot``,
``groot``: whole folders of each layout; ``convert``: other people's releases; ``random``: nobody's
weights. ``draft_head``, ``verdicts``: what lies beside a checkpoint.
"""
