"""Files of policies: found, checked, read.

``hub``: the folder of a checkpoint's name; ``foreign``: folders that are not read as they stand.
``config`` (token policies) and ``flow_config``: config.json; ``fields``: every field of others';
``processors``: from images, states and actions to the model's numbers; ``tokens``: prompts and
action tokens. ``weights``: the one loader; ``tensors``: tables of networks; ``quantize``: fewer
bits. ``checkpoint``, ``bitvla``, ``groot``: files of one layout each.
"""
