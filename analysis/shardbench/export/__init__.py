"""Tables of many runs in one file for other programs.

`tables` decides what stands in them, `write` how they become CSV or Parquet, `command` is the command line.
"""
