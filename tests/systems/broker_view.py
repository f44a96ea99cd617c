"""A RabbitMQ seen from outside redrive: what its management API says, and messages of other publishers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pika

from tests.rabbit import Rabbit

Entities = dict[str, dict[str, Any]]


class BrokerView:
    """One virtual host. Blocking calls run in a thread, so that the worker in this process goes on."""

    def __init__(self, rabbit: Rabbit) -> None:
        self._rabbit = rabbit
        self._vhost = quote(rabbit.vhost.name, safe="")

    async def exchanges(self) -> dict[str, str]:
        """Type by name, the broker's own left out."""
        found = await self._get("exchanges")
        return {each["name"]: each["type"] for each in found if each["name"] and not each["name"].startswith("amq.")}

    async def queues(self) -> Entities:
        """Arguments by name; only durable ones count."""
        return {each["name"]: each["arguments"] for each in await self._get("queues") if each["durable"]}

    async def bindings(self) -> set[tuple[str, str, str]]:
        """(source, destination, key), those of the default exchange left out."""
        return {
            (each["source"], each["destination"], each["routing_key"])
            for each in await self._get("bindings")
            if each["source"]
        }

    async def depth(self, queue: str) -> int:
        """Messages in it, as a passive declare counts them."""
        return await asyncio.to_thread(self._depth, queue)

    async def take(self, queue: str) -> tuple[bytes, pika.BasicProperties]:
        """The first message, removed. Raises where there is none."""
        return await asyncio.to_thread(self._take, queue)

    async def publish(
        self, exchange: str, routing_key: str, body: bytes, *, headers: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """As a publisher that knows nothing of redrive."""
        properties = pika.BasicProperties(headers=dict(headers or {}), delivery_mode=2, **more)
        await asyncio.to_thread(self._publish, exchange, routing_key, body, properties)

    async def _get(self, what: str) -> Any:
        return await asyncio.to_thread(self._rabbit.server.api, "GET", f"/api/{what}/{self._vhost}")

    def _depth(self, queue: str) -> int:
        with pika.BlockingConnection(pika.URLParameters(self._rabbit.url)) as connection:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)

    def _take(self, queue: str) -> tuple[bytes, pika.BasicProperties]:
        with pika.BlockingConnection(pika.URLParameters(self._rabbit.url)) as connection:
            method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
            assert method is not None, f"{queue} is empty"
            return body, properties

    def _publish(self, exchange: str, routing_key: str, body: bytes, properties: pika.BasicProperties) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._rabbit.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
