"""Who a process is: certificates of one private authority (SEC-01, SEC-02)."""
