"""``make demo``: the whole product on one machine, with a real model.

It uses the product only as people do: settings files, the ``llmgw`` command, the
admin API and OpenAI's client. It imports no part.
"""
