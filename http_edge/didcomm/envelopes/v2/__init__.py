"""DIDComm v2: its envelopes, signatures, plaintext messages and forwards; pure."""
