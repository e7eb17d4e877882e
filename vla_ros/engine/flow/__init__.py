"""The second primitive: a prefix that is encoded once, and an action head that reads it."""
