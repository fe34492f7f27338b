"""The router: one OpenAI-compatible address in front of every engine (RTR)."""
