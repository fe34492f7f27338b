"""Who leads: one control plane alone by the lock on its database, several by a lease in it (HA-01)."""
