"""What spark-submit starts: the same program as ``python -m projections``."""  # noqa: INP001

from projections.program import projections

projections(prog_name="projections")
