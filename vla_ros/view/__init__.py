"""A page in the browser that shows a running policy and speaks to it: what it says, and viser."""
