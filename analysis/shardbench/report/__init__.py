"""A directory's summary: text for the terminal (`text`), and one self-contained HTML page (`page`)."""
