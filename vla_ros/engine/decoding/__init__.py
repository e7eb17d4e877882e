"""Ways of decoding an answer; each fills packed passes of the decoder, or integrates a flow.

Read in this order: ``request`` (what comes in and goes out), ``runner`` (how a pass is run),
``base``, ``autoregressive``, ``actionflow``, ``parallel``; ``flow_matching`` is for flow policies.

Speculation: ``speculative`` (the loop, over chains and trees), ``acceptance`` (which draft tokens
stand), ``drafters`` (temporal; a small VLA is the lab's), ``temporal_prediction`` (what earlier
answers let one expect), ``draft_tree`` (shapes and which nodes pay).

With a draft head: ``draft_heads`` (the network), ``head_drafters``, ``tree_growth`` (a tree out of
the head, in CUDA graphs).

``factory`` makes them of the options, and those of other distributions by the entry points
`vla_ros.decodings`: the lab's HeteroSpec, the references, the drafter ``model``.
"""
