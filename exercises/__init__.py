"""A package, so that pytest does not take exercises/attention.py for attention.py."""
