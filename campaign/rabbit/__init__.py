"""Fault campaigns on a real RabbitMQ: a private node, a proxy that breaks connections, workers that are killed.

Every message is written down by its sender once the broker has confirmed it, and by its handler in one transaction with
the message's end. Between the two, everything happens that can happen. Afterwards the books must agree.

The node is the oldest RabbitMQ of this machine, or the one `CAMPAIGN_RABBITMQ` says (`3`, `4`).
"""
