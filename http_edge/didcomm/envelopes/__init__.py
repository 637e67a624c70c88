"""DIDComm message versions behind one interface; pure.

``messages`` defines a message as the rest of the mediator sees it, free of any version's spelling;
``versions`` has the table of versions. Each version is a package (``v1``, ``v2``) with one class,
which only the table imports in the mediator. So what protocols or both versions need is beside the
packages, even if it is of one generation: ``peer_documents`` and ``signed`` of DIDComm v1 for the
handshakes, ``agent_documents``, ``public_keys`` and ``key_agreement`` of DIDComm v2.
"""
