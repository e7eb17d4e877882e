"""Fixtures and hooks of all tests, of test/ and of lab/test/: see test/support/plugin.py."""

pytest_plugins = ["support.plugin"]
