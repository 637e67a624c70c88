"""Waiting messages on their way to sockets and long polls."""
