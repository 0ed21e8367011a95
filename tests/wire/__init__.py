"""Faults on a wire: a relay between a client and its real server that bends single messages of their protocol.

``relay`` knows connections and faults, and no protocol; each protocol has a file that says where its messages end, how
a request is called, and to which request an answer belongs.
"""
