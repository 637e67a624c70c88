"""DIDComm message versions behind one interface; pure.

``messages`` defines a message as the rest of the mediator sees it, free of any version's spelling;
``versions`` has the table of versions. Each version is a package (``v1``, ``v2``) with one class.
The versions share ``keys``, ``peer_dids``, ``documents`` and ``signed``.
"""
