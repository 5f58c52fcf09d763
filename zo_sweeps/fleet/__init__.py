"""The machines of a cluster: a head, workers that join it and stay joined, and what each of them is.

Ray runs the trials (`schedule/`); this room starts Ray's nodes, keeps them up, and lets them say what they are through
the head's key-value store: plain JSON under the namespace "zo".
"""
