"""Who leads: with one control plane, whoever holds the database (HA-01)."""
