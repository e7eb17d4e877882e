"""What people look at: the browser page, Rerun, reports."""
