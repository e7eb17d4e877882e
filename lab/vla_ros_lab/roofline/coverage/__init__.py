"""Drafts that a policy's recorded tokens would allow: coverage of alternatives, and passes.

An *alternative* is a guess at a token from the same place of the actions before it. Coverage is
the share of tokens that are among so many alternatives; passes are those of drafts verified
behind the prompt and then behind each correction, replayed on the tokens. What is fitted is
fitted on other episodes than it is judged by. numpy only.

Of a chunk of several actions a token has been said before by the last chunk, *shifted* by the steps
that were executed in between, and lies near the same token of the *previous step* of its own
chunk: there those stand for the actions before
(:mod:`vla_ros.engine.decoding.temporal_prediction`).
"""
