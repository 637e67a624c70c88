"""The archive of a log: which rows leave the log for it, how they leave, and what it keeps."""
