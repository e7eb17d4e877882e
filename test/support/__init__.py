"""Helpers shared by the tests. Import what you need: `from support.wait import wait_until`."""
