"""What a person reads in a terminal: consoles and error lines, tables, progress. All of it rich.

On a terminal there is colour (none with NO_COLOR) and a line that is rewritten; everywhere else
plain text without any escape code, 80 columns wide, so that it can be kept and searched.
rich is imported only when something is shown: `vla-ros --help` needs neither it nor its time.
"""
