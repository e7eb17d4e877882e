"""The figures of the report, drawn with matplotlib as SVG."""
