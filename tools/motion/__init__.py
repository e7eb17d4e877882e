"""How smooth the motion is that commands make: between two actions and from chunk to chunk.

`recorded` has chunks of policies, `ways` what is commanded of them and what a servo makes of that,
`smoothness` compares.
"""
