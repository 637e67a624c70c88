"""Rebuilds all tables from an export."""
