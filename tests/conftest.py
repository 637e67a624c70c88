"""Fixtures for all tests."""

pytest_plugins = ("tests.postgres", "tests.spark")
