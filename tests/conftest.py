"""Fixtures for all tests."""

import signal

pytest_plugins = ("tests.postgres", "tests.spark")

# A shell without job control starts what runs in the background deaf to it, with all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
