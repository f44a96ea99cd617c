"""Real servers for tests: private, on free loopback ports, gone when the test run is gone, however it ends.

    from redrive.testing.servers.rabbitmq import RabbitNode, installed

    with RabbitNode(installed()[0]) as node, node.vhost() as vhost:
        ...                 # vhost.url is an amqp:// URL of an empty virtual host
        node.kill()         # kill -9; the data stay
        node.start()        # on the same data and the same ports

`rabbitmq` starts and ends nodes and hands out virtual hosts; `rabbitmq_install` finds the programs, and
`python -m redrive.testing.servers` gets them where that is allowed. `proxy` stands between a client and a server and
breaks the connection in every way a network does. `redis` and `redis_install` do the same for Redis and Valkey,
`postgres` and `postgres_install` for PostgreSQL.
"""
