"""Tests of ``llmgw.identity`` (SEC-01, SEC-02)."""
