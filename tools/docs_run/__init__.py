"""`make test-docs`: the documented commands, really run. See __main__."""
