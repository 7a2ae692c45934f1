"""Two sets of runs side by side.

`pairs` decides what belongs together and what differs, `show` says it, `command` is the command line.
"""
