"""Exceptions by name: Python's own and those of well-known libraries, without importing any of them.

A key is "package.QualName": the first part of the class's module and its qualified name, so that a library may move
a class between its modules. A class is looked up along its MRO, most specific first. What stands in no row is
transient under its own name (see `redrive.core.policy.classify`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from redrive.core.policy.failure import Entry, permanent, transient

TIMEOUT: Final = "TIMEOUT"
CONNECTION_FAILED: Final = "CONNECTION_FAILED"
"""A connection failed and the error does not say how; an errno found among its causes takes this code's place."""
VALIDATION_FAILED: Final = "VALIDATION_FAILED"
MALFORMED_PAYLOAD: Final = "MALFORMED_PAYLOAD"
INVALID_RESPONSE: Final = "INVALID_RESPONSE"
"""The other side answered something that is no answer."""

_BUILTINS: Final = {
    "builtins.TimeoutError": transient(TIMEOUT, "Python: builtin exceptions, ETIMEDOUT and asyncio timeouts"),
    "builtins.ConnectionRefusedError": transient("ECONNREFUSED", "Python: builtin exceptions"),
    "builtins.ConnectionResetError": transient("ECONNRESET", "Python: builtin exceptions"),
    "builtins.ConnectionAbortedError": transient("ECONNABORTED", "Python: builtin exceptions"),
    "builtins.BrokenPipeError": transient("EPIPE", "Python: builtin exceptions"),
    "builtins.ConnectionError": transient(CONNECTION_FAILED, "Python: builtin exceptions"),
    "builtins.UnicodeDecodeError": permanent(MALFORMED_PAYLOAD, "Python: these bytes never become text"),
    "asyncio.IncompleteReadError": transient("ECONNRESET", "Python: asyncio streams, the stream ended early"),
    "concurrent.TimeoutError": transient(TIMEOUT, "Python: concurrent.futures"),
    "http.RemoteDisconnected": transient("ECONNRESET", "Python: http.client"),
    "http.IncompleteRead": transient("ECONNRESET", "Python: http.client"),
    "http.HTTPException": transient(INVALID_RESPONSE, "Python: http.client, an answer that is no HTTP"),
    "json.JSONDecodeError": permanent(MALFORMED_PAYLOAD, "Python: json"),
    "socket.gaierror": transient("DNS_FAILED", "Python: socket; a name may resolve again"),
    "socket.herror": transient("DNS_FAILED", "Python: socket; a name may resolve again"),
    "ssl.SSLCertVerificationError": transient("TLS_CERTIFICATE_INVALID", "Python: ssl; a certificate can be renewed"),
    "ssl.SSLError": transient("TLS_FAILED", "Python: ssl"),
    "sqlite3.OperationalError": transient("DATABASE_UNAVAILABLE", "Python: sqlite3, locked or busy"),
    "urllib.URLError": transient(CONNECTION_FAILED, "Python: urllib.error"),
    "smtplib.SMTPServerDisconnected": transient("ECONNRESET", "Python: smtplib"),
    "smtplib.SMTPNotSupportedError": permanent("SMTP_NOT_SUPPORTED", "Python: smtplib"),
    "xml.ParseError": permanent(MALFORMED_PAYLOAD, "Python: xml.etree"),
}


def _rows(library: str, entry: Entry, names: str) -> Iterator[tuple[str, Entry]]:
    return ((f"{library}.{name}", entry) for name in names.split())


def _lost(library: str, names: str) -> Iterator[tuple[str, Entry]]:
    return _rows(library, transient(CONNECTION_FAILED, f"{library}: exceptions"), names)


def _timeouts(library: str, names: str) -> Iterator[tuple[str, Entry]]:
    return _rows(library, transient(TIMEOUT, f"{library}: exceptions"), names)


def _invalid(library: str, names: str) -> Iterator[tuple[str, Entry]]:
    return _rows(library, permanent(VALIDATION_FAILED, f"{library}: exceptions"), names)


def _malformed(library: str, names: str) -> Iterator[tuple[str, Entry]]:
    return _rows(library, permanent(MALFORMED_PAYLOAD, f"{library}: exceptions"), names)


def _garbage(library: str, names: str) -> Iterator[tuple[str, Entry]]:
    return _rows(library, transient(INVALID_RESPONSE, f"{library}: exceptions"), names)


_HTTP_CLIENTS: Final = (
    *_timeouts("httpx", "TimeoutException ConnectTimeout ReadTimeout WriteTimeout PoolTimeout"),
    *_lost("httpx", "TransportError NetworkError ConnectError ReadError WriteError CloseError ProxyError"),
    *_garbage("httpx", "ProtocolError RemoteProtocolError DecodingError"),
    *_rows("httpx", permanent("INVALID_URL", "httpx: exceptions"), "InvalidURL UnsupportedProtocol LocalProtocolError"),
    *_timeouts("httpcore", "TimeoutException ConnectTimeout ReadTimeout WriteTimeout PoolTimeout"),
    *_lost("httpcore", "NetworkError ConnectError ReadError WriteError ProxyError ConnectionNotAvailable"),
    *_garbage("httpcore", "ProtocolError RemoteProtocolError"),
    *_timeouts("requests", "Timeout ConnectTimeout ReadTimeout"),
    *_lost("requests", "ConnectionError ProxyError SSLError ChunkedEncodingError"),
    *_garbage("requests", "InvalidJSONError JSONDecodeError ContentDecodingError"),
    *_rows(
        "requests",
        permanent("INVALID_URL", "requests: exceptions"),
        "MissingSchema InvalidSchema InvalidURL InvalidProxyURL InvalidHeader",
    ),
    *_timeouts("urllib3", "TimeoutError ConnectTimeoutError ReadTimeoutError"),
    *_lost("urllib3", "NewConnectionError NameResolutionError ProxyError SSLError MaxRetryError ProtocolError"),
    *_garbage("urllib3", "DecodeError IncompleteRead InvalidChunkLength"),
    *_timeouts("aiohttp", "ServerTimeoutError ConnectionTimeoutError SocketTimeoutError"),
    *_lost(
        "aiohttp",
        "ClientConnectionError ClientConnectorError ClientOSError ServerConnectionError ServerDisconnectedError "
        "ClientPayloadError ClientProxyConnectionError",
    ),
    *_garbage("aiohttp", "ContentTypeError ClientResponseError"),
    *_rows("aiohttp", permanent("INVALID_URL", "aiohttp: exceptions"), "InvalidURL InvalidUrlClientError"),
    *_timeouts("niquests", "Timeout ConnectTimeout ReadTimeout"),
    *_lost("niquests", "ConnectionError ProxyError SSLError"),
    *_lost("websockets", "ConnectionClosed ConnectionClosedError InvalidHandshake"),
    *_lost("anyio", "BrokenResourceError ClosedResourceError EndOfStream ConnectionFailed"),
    *_lost("trio", "BrokenResourceError ClosedResourceError"),
    *_timeouts("trio", "TooSlowError"),
)

_STORES: Final = (
    *_timeouts("redis", "TimeoutError"),
    *_lost("redis", "ConnectionError BusyLoadingError ClusterDownError MaxConnectionsError"),
    *_timeouts(
        "pymongo", "NetworkTimeout ServerSelectionTimeoutError ExecutionTimeout WTimeoutError WaitQueueTimeoutError"
    ),
    *_lost("pymongo", "ConnectionFailure AutoReconnect NotPrimaryError"),
    *_timeouts("psycopg", "errors.ConnectionTimeout ConnectionTimeout QueryCanceled"),
    *_timeouts("psycopg_pool", "PoolTimeout"),
    *_lost("psycopg", "OperationalError InterfaceError"),
    *_lost("psycopg2", "OperationalError InterfaceError"),
    *_timeouts("asyncpg", "QueryCanceledError"),
    *_lost(
        "asyncpg",
        "PostgresConnectionError ConnectionDoesNotExistError ConnectionFailureError CannotConnectNowError "
        "TooManyConnectionsError InterfaceError AdminShutdownError CrashShutdownError",
    ),
    *_lost("pymysql", "OperationalError InterfaceError"),
    *_lost("MySQLdb", "OperationalError InterfaceError"),
    *_lost("mysql", "OperationalError InterfaceError PoolError"),
    *_timeouts("sqlalchemy", "TimeoutError"),
    *_lost("sqlalchemy", "OperationalError InterfaceError DisconnectionError"),
    *_timeouts("cassandra", "OperationTimedOut ReadTimeout WriteTimeout"),
    *_lost("cassandra", "Unavailable"),
    *_timeouts("elastic_transport", "ConnectionTimeout"),
    *_lost("elastic_transport", "ConnectionError TransportError"),
    *_timeouts("elasticsearch", "ConnectionTimeout"),
    *_lost("elasticsearch", "ConnectionError"),
)

_BROKERS: Final = (
    *_timeouts("pika", "AMQPHeartbeatTimeout BlockedConnectionTimeout"),
    *_lost(
        "pika",
        "AMQPConnectionError ConnectionClosed ConnectionClosedByBroker StreamLostError AMQPChannelError ChannelClosed "
        "ConnectionWrongStateError ChannelWrongStateError NackError UnroutableError",
    ),
    *_lost(
        "aiormq",
        "AMQPConnectionError ConnectionClosed ConnectionChannelError ConnectionInternalError ChannelClosed "
        "ChannelInvalidStateError DeliveryError PublishError",
    ),
    *_lost("aio_pika", "AMQPConnectionError ConnectionClosed ChannelClosed ChannelInvalidStateError DeliveryError"),
    *_lost("amqp", "ConnectionError RecoverableConnectionError ConnectionForced ResourceError"),
    *_lost("kombu", "OperationalError ConnectionError"),
    *_timeouts("kafka", "KafkaTimeoutError RequestTimedOutError"),
    *_lost("kafka", "KafkaConnectionError NoBrokersAvailable NodeNotReadyError"),
    *_timeouts("aiokafka", "KafkaTimeoutError RequestTimedOutError"),
    *_lost("aiokafka", "KafkaConnectionError"),
    *_timeouts("nats", "TimeoutError"),
    *_lost("nats", "ConnectionClosedError NoServersError StaleConnectionError NoRespondersError"),
)

_SERVICES: Final = (
    *_timeouts("botocore", "ConnectTimeoutError ReadTimeoutError"),
    *_lost("botocore", "EndpointConnectionError ConnectionError ConnectionClosedError ProxyConnectionError SSLError"),
    *_lost("botocore", "HTTPClientError ResponseStreamingError"),
    *_invalid("botocore", "ParamValidationError"),
    *_timeouts("aiosmtplib", "SMTPTimeoutError SMTPConnectTimeoutError SMTPReadTimeoutError"),
    *_lost("aiosmtplib", "SMTPConnectError SMTPServerDisconnected"),
    *_timeouts("openai", "APITimeoutError"),
    *_lost("openai", "APIConnectionError"),
    *_timeouts("anthropic", "APITimeoutError"),
    *_lost("anthropic", "APIConnectionError"),
    *_lost("stripe", "APIConnectionError _error.APIConnectionError"),
    *_timeouts("paramiko", "AuthenticationTimeout"),
    *_lost("paramiko", "NoValidConnectionsError SSHException"),
)

_VALIDATION: Final = (
    *_invalid("pydantic", "ValidationError"),
    *_invalid("pydantic_core", "ValidationError"),
    *_invalid("msgspec", "ValidationError"),
    *_malformed("msgspec", "DecodeError"),
    *_malformed("orjson", "JSONDecodeError"),
    *_malformed("ujson", "JSONDecodeError"),
    *_malformed("simplejson", "JSONDecodeError"),
    *_malformed("rapidjson", "JSONDecodeError"),
    *_malformed("msgpack", "UnpackException ExtraData FormatError StackError"),
    *_malformed("cbor2", "CBORDecodeError"),
    *_malformed("google", "DecodeError message.DecodeError"),
    *_malformed("lxml", "XMLSyntaxError"),
    *_malformed("yaml", "YAMLError"),
    *_invalid("jsonschema", "ValidationError"),
    *_invalid("fastjsonschema", "JsonSchemaException JsonSchemaValueException"),
    *_invalid("marshmallow", "ValidationError"),
    *_invalid("voluptuous", "Invalid"),
    *_invalid("cerberus", "DocumentError"),
    *_invalid("cattrs", "BaseValidationError ClassValidationError StructureHandlerNotFoundError"),
    *_invalid("mashumaro", "MissingField InvalidFieldValue"),
    *_invalid("dacite", "DaciteError"),
    *_invalid("attr", "NotAnAttrsClassError"),
    *_invalid("django", "ValidationError"),
    *_invalid("rest_framework", "ValidationError"),
    *_invalid("beartype", "BeartypeCallHintViolation"),
    *_invalid("typeguard", "TypeCheckError"),
)

BY_NAME: Final[dict[str, Entry]] = {
    **_BUILTINS,
    **dict(_HTTP_CLIENTS),
    **dict(_STORES),
    **dict(_BROKERS),
    **dict(_SERVICES),
    **dict(_VALIDATION),
}
"""{"package.QualName": row}."""

_ANY_VALIDATION: Final = permanent(VALIDATION_FAILED, "the name a team gives its own validation error")
_ANY_MALFORMED: Final = permanent(MALFORMED_PAYLOAD, "the name a team gives its own malformed-payload error")
BY_BARE_NAME: Final[dict[str, Entry]] = {
    "ValidationError": _ANY_VALIDATION,
    "InvalidPayload": _ANY_VALIDATION,
    "InvalidPayloadError": _ANY_VALIDATION,
    "SchemaValidationError": _ANY_VALIDATION,
    "PayloadValidationError": _ANY_VALIDATION,
    "MalformedPayload": _ANY_MALFORMED,
    "MalformedPayloadError": _ANY_MALFORMED,
    "MalformedMessageError": _ANY_MALFORMED,
    "JSONDecodeError": _ANY_MALFORMED,
}
"""Names that mean the same in every package; asked after `BY_NAME`."""
