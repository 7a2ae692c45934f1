"""Reduces trace files to what a report shows.

A file is one launch. Launches of one configuration at one N form a point, points that differ only
in N form a series, series of one model form a study. Everything is seconds, bytes and elements.
"""
