"""The protocols of DIDComm that are spoken, one module each; ``didcomm.composition`` lists them."""
