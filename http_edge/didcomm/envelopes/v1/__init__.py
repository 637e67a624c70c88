"""DIDComm v1: its encryption envelope, its plaintext messages and its forwards; pure."""
