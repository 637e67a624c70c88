"""What the log proves of one message or one identity, looked up without Spark."""
