"""The only definition of what crosses processes.

Standard library and msgspec only. Readers are tolerant: an unknown field is
ignored, an absent field is unknown (never zero).
"""
