"""Proves from the files of an export alone that it is as it was written."""
