"""The only package that imports Ray: starts and stops Ray, and runs hosts as Ray actors."""
