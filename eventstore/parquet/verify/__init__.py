"""Proves from its files alone that an export is what was written."""
