"""A prepared corpus in a compact form that moves to another machine in pieces; packing and unpacking need Python and numpy only.

`coding.py` makes bytes of ids, `pieces.py` cuts what is written into files of a given size, `packing.py` puts a corpus in and out.
"""
