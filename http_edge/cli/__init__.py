"""The command ``poste``: one module per command, imported when the command is called."""
