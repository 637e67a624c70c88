"""The command ``poste``: one module per command, imported when it is called."""
