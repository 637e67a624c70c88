"""The settings, typed and each with unit, default and reason, and the sources that set them."""
