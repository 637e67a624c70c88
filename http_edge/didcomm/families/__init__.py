"""The protocol families of DIDComm v1, one module each; ``families.table`` names them all."""
