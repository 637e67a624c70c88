"""The walks of ``poste demo`` through both protocols: steps that each prove something."""
