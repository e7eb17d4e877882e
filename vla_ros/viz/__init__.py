"""Views of a run for people: the browser page, Rerun, reports."""
