"""The gateway: the one HTTPS server on the head that agents dial, and its keys. It needs no Ray."""
