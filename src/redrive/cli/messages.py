"""`redrive publish`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import MessageOptions, Where, spread
from redrive.cli.output import note, plural, print_json, say
from redrive.cli.prompts import Bar
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.service import Receipt, Service

BATCH: Final = 1_000
STDIN: Final = "-"
STDIN_NAME: Final = "standard input"
JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"

Arguments = Mapping[str, Any]


@spread
def publish(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Where to.")],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="The body, sent byte for byte; left out or -: standard input.", show_default=False
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Send every line of a file of JSON lines (-: stdin)."),
    ] = None,
    options: MessageOptions,
    where: Where,
) -> None:
    """Send a message; returns when it is durable.

    \b
      redrive publish orders '{"id": 1}' --broker sqlite:///orders.db
      redrive publish orders '{"id": 2}' --key order-2 --delay 5m --header region=eu
      redrive publish orders --file orders.jsonl      one message a line, in batches
      curl -s https://example.org/order | redrive publish orders
    """
    o.refuse_unless(payload is None or file is None, "PAYLOAD and --file cannot be given together.")
    is_one = options.key is not None or options.message_id is not None
    o.refuse_unless(file is None or not is_one, "--key and --message-id name one message, --file sends many.")
    common = options.arguments()

    async def work(service: Service) -> Receipt:
        if not options.exchange:
            _warn_of(queue, service.consumed_queues, is_json=where.is_json)
        if file is not None:
            lines = {**common, "content_type": options.content_type or JSON_TYPE}
            return await _publish_lines(service, queue, file, arguments=lines, is_quiet=where.is_json)
        body = _body(payload)
        arguments = {**common, "content_type": options.content_type or _content_type(body)}
        return await service.publish(queue, [(body, arguments)])

    _finish(where.run(work, may_create=True), to=options.exchange or queue, is_json=where.is_json)


def _warn_of(queue: str, consumed: tuple[str, ...], *, is_json: bool) -> None:
    """The message goes out all the same: the consumer may be of another app."""
    if consumed and queue not in consumed and not is_json:
        from redrive.runtime.settings import nearest

        note(f'This app has no consumer for "{queue}". {nearest(queue, consumed)}')


def _body(payload: str | None) -> bytes:
    if payload is not None and payload != STDIN:
        return payload.encode("utf-8", "surrogateescape")
    if sys.stdin.isatty():
        note("Reading the body from the terminal; end it with Ctrl-D.")
    body = sys.stdin.buffer.read()
    o.refuse_unless(
        body, "Standard input is empty. Nothing was sent.", 'An empty body is sent on purpose: redrive publish QUEUE ""'
    )
    return body


def _not_json(body: bytes) -> str | None:
    """Why a consumer could not read it as JSON; None where it can."""
    import msgspec

    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return str(error)
    return None


def _content_type(body: bytes) -> str | None:
    """JSON where it is JSON, text where it is text, none for other bytes."""
    if _not_json(body) is None:
        return JSON_TYPE
    try:
        body.decode()
    except UnicodeDecodeError:
        return None
    return TEXT_TYPE


async def _publish_lines(service: Service, queue: str, file: Path, *, arguments: Arguments, is_quiet: bool) -> Receipt:
    """Send the lines in batches. A file is read twice, so that a bad line is found before anything is sent; what can
    be read only once (a pipe) is sent up to the batch with the bad line.
    """
    from redrive.service import Receipt

    name = STDIN_NAME if str(file) == STDIN else str(file)
    sum_ = Receipt(queue=queue, published=0)
    try:
        total = _count(file, name)
        with _opened(file) as stream, Bar("publish", total=total, is_quiet=is_quiet) as bar:
            for batch in _batches(_checked(stream, name)):
                part = await service.publish(queue, [(line, arguments) for line in batch])
                sum_ = Receipt(
                    queue=queue,
                    published=sum_.published + part.published,
                    duplicates=sum_.duplicates + part.duplicates,
                    conflicts=sum_.conflicts + part.conflicts,
                )
                bar(sum_.published)
    except _NotJsonError as error:
        done = f"The first {plural(sum_.published, 'message')} went out." if sum_.published else "Nothing was sent."
        raise ConfigurationError(f"{error} {done}") from None
    return sum_


class _NotJsonError(Exception):
    """Says which line, and why."""


def _count(file: Path, name: str) -> int | None:
    """The lines of a file, every one of them JSON; None for what can be read only once."""
    if str(file) == STDIN or (file.exists() and not file.is_file()):
        return None
    with _opened(file) as stream:
        return sum(1 for _ in _checked(stream, name))


def _opened(file: Path) -> AbstractContextManager[BinaryIO]:
    if str(file) == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigurationError(f'"{file}" cannot be read: {error.strerror}. Nothing was sent.') from error


def _checked(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines that are not blank, without their line ends."""
    for number, line in enumerate(stream, 1):
        text = line.strip()
        if not text:
            continue
        if (why := _not_json(text)) is not None:
            raise _NotJsonError(f"Line {number} of {name} is not JSON: {why}.")
        yield text


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _finish(receipt: Receipt, *, to: str, is_json: bool) -> None:
    if is_json:
        from redrive.views import receipt_document

        print_json(receipt_document(receipt))
    else:
        say(f"{plural(receipt.published, 'message')} sent to {to}.")
        if receipt.duplicates:
            note(f"{plural(receipt.duplicates, 'message')} had a key the queue knows already: not sent again.")
        if receipt.conflicts:
            note("The key is known with another body: not sent.")
    if receipt.conflicts:
        raise typer.Exit(1)
