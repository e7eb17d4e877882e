"""The second primitive: a prefix that is encoded once, and an action head that reads it.

``primitive``: the two functions; ``engine``: the face; ``head``: from an observation to a chunk.
``family``, ``families``: what a family is, and which there are: ``lerobot`` (``pi``, ``smolvla``),
``evo1``, ``groot``. ``solver``: noise to actions; ``continuing``: from one chunk to the next.
``cameras``, ``preparation``, ``text``: from a robot's units and words to a model's, and back.
``load``, ``weights``, ``matrices``: from a folder to what is multiplied; ``quantise``, ``stored``:
in fewer bits.
"""
