"""A report on what an export shows: numbers by Spark, plots, one page that needs nothing else."""
