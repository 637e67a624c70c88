"""A report on an export: numbers that Spark computes, plots, and one self-contained page."""
