"""The sockets of the control plane: agents, routers, administrators."""
