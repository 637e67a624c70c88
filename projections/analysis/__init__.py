"""What analysts get: an export and its tables by their names, and what each column holds."""
