"""The conformance kit for Rulvar stores: this package holds its name, the kit is not there yet.

It checks nothing and certifies nothing.
"""
