"""Delivery of waiting messages to sockets and long polls."""
