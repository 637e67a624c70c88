"""DIDComm message versions behind one interface; pure.

``messages`` defines a message as the rest of the mediator sees it, free of any version's spelling;
``versions`` defines the interface of a version and the table of versions. Each version is a
package (``v1``, ``v2``). The versions share ``keys``, ``peer_dids``, ``documents`` and ``signed``.
"""
