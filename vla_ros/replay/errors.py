"""The one error of this package."""


class BagError(Exception):
    """A bag, golden file or choice of topics that cannot be replayed: what is wrong, and what
    to do about it, in one line."""
