"""The only part of ``actors`` that imports Ray: starts and stops it, and runs hosts as actors."""
