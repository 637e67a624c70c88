"""The log as Parquet files: written beside a serving mediator, read by anything that has Arrow."""
