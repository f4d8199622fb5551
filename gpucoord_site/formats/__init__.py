"""Formats of dates and times that Django uses for a language: FORMAT_MODULE_PATH."""
