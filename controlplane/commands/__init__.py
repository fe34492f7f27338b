"""Commands that work on the store itself, without a control plane (CLI-04, STO-02)."""
