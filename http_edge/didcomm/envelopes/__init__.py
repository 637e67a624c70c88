"""Message versions of DIDComm behind one seam; pure.

``messages`` has what the rest of the mediator knows of a message, in no version's spelling;
``versions`` has the interface of a version and the table of them. A version is a package of its
own (``v1``). ``keys``, ``peer_dids``, ``documents`` and ``signed`` are shared.
"""
