"""The only package that imports Ray: hosts and the placer as Ray actors, starting and stopping."""
