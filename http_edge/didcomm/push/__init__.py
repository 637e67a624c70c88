"""Push notifications: a push service is asked to tell a wallet's device that messages wait.

A wallet names its device (RFC 0699, RFC 0734). ``gateways`` opens the way to the push service that
the operator has set: a webhook, or Firebase Cloud Messaging. The service learns that messages wait
for a device, how many and when; it gets no name, no key and no content.
"""
