"""The machines of a cluster: a head, the nodes that join it and stay joined, and a description of each.

Ray runs the trials (`schedule/`). This room starts Ray's nodes, keeps them up, and lets them describe themselves in the
head's key-value store: plain JSON under the namespace "zo".
"""
