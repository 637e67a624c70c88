"""What the log proves of messages, identities and refusals."""
