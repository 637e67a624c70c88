"""The DIDComm protocols that the mediator speaks, one module each; see ``didcomm.composition``."""
