"""The admin API: one module per resource, its schemas beside it (API-01 to API-04)."""
