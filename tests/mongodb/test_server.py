"""The private server, and what the driver raises as errors of redrive."""

from __future__ import annotations

import pymongo
import pytest
from pymongo import errors

from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.stores.mongodb.failures import duplicates_of, error_for
from redrive.stores.mongodb.link import Link, parse
from redrive.testing.servers.mongodb import MongoNode
from tests.mongodb.server import ferretdb


def test_a_killed_server_comes_back_with_its_data_on_its_port() -> None:
    with MongoNode(ferretdb()) as node:
        url = node.url
        with pymongo.MongoClient[dict[str, object]](url) as client:
            client["x"]["y"].insert_one({"_id": 1})
        node.kill()
        assert not node.is_running
        node.start()
        assert url == node.url
        with pymongo.MongoClient[dict[str, object]](url) as client:
            assert [{"_id": 1}] == client["x"]["y"].find().to_list()


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (errors.ServerSelectionTimeoutError("no primary"), BrokerUnavailableError, "tried again"),
        (errors.AutoReconnect("closed"), BrokerUnavailableError, "tried again"),
        (errors.NetworkTimeout("slow"), BrokerUnavailableError, "tried again"),
        (errors.NotPrimaryError("stepped down"), BrokerUnavailableError, "tried again"),
        (errors.WTimeoutError("majority", 64), BrokerUnavailableError, "tried again"),
        (errors.OperationFailure("not writable", 10_107), BrokerUnavailableError, "tried again"),
        (errors.OperationFailure("full", 14_031), BrokerUnavailableError, "room"),
        (errors.OperationFailure("who are you", 18), ConfigurationError, "password"),
        (errors.OperationFailure("not you", 13), ConfigurationError, "readWrite"),
        (errors.OperationFailure("what?", 59), ConfigurationError, "refused the command"),
        (errors.BulkWriteError({"writeErrors": [{"index": 0, "code": 14_031}]}), BrokerUnavailableError, "room"),
    ],
)
def test_each_error_of_the_driver_has_its_own(raised: errors.PyMongoError, kind: type[Exception], words: str) -> None:
    found = error_for(raised, "db:27017", fate="Nothing was stored.")

    assert kind is type(found)
    assert words in str(found)
    assert "db:27017" in str(found)
    assert "Nothing was stored." in str(found)


def test_a_duplicate_key_is_an_answer_and_anything_beside_it_an_error() -> None:
    """Case ID-02. An index that is not redrive's would refuse the same key for ever."""
    taken = {"index": 2, "code": 11_000, "errmsg": "E11000 duplicate key error collection: t.a index: _id_ dup key: {}"}
    foreign = {"index": 1, "code": 11_000, "errmsg": "E11000 duplicate key error collection: t.a index: mine_1 dup key"}

    assert {2} == duplicates_of(errors.BulkWriteError({"writeErrors": [taken]}))
    for beside in (
        {"writeErrors": [taken, {"index": 0, "code": 14_031}]},
        {"writeConcernErrors": [{"code": 64}]},
        {"writeErrors": [taken, foreign]},
    ):
        with pytest.raises(errors.BulkWriteError):
            duplicates_of(errors.BulkWriteError({"writeErrors": [taken], **beside}))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mongodb://host", "names no database"),
        ("mongodb://host/", "names no database"),
        ("mongodb://host:99999/x", "not right"),
        ("mongodb://host/x?claims=", "claims"),
        ("mongodb://host/x?letters=a$b", "letters"),
    ],
)
def test_a_url_that_is_none_is_refused_by_what_is_wrong(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Link(url)


def test_names_of_collections_are_taken_out_of_the_url_and_no_message_shows_the_password() -> None:
    found = parse("mongodb://ann:secret@one:1,two:2/shop?claims=keys&letters=dead&prefix=r&replicaSet=rs0")

    assert ("shop", "keys", "dead", "r") == (found.database, found.claims, found.letters, found.prefix)
    assert "mongodb://ann:secret@one:1,two:2/shop?replicaSet=rs0" == found.url
    assert "one:1,two:2" == found.where
