"""GR00T: a vision-language model whose last rows are read by a diffusion transformer.

``version``: what differs between N1.5, N1.6 and N1.7; ``n15``, ``n16``, ``n17``: each. ``load``,
``shards``: NVIDIA's folder; ``embodiment``, ``metadata``: what it says of one robot. ``pictures``,
``prompt``, ``units``: from a robot to the model, and back. ``eagle``, ``qwen_vl``: what is in
front of the ``head``. ``model``: all of it.
"""
