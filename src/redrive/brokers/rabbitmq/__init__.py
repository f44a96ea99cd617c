"""RabbitMQ, 3.10 to 4.x, over AMQP 0-9-1. `broker.RabbitBroker` is the adapter; start reading there."""
