"""Who gets in: tokens, JSON Web Tokens, and how often one may be wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from redrive.core.access import Role
from redrive.errors import ConfigurationError, NotFoundError
from redrive.runtime.app import Redrive
from redrive.runtime.jwt_rules import JwtRules, jwt_rules_from
from redrive.testing.clock import FakeClock
from redrive.web.admin import AdminApi, Guard, admin_app, guard_of
from redrive.web.admin.auth.jwt import REFETCH_MS, JwtVerifier
from redrive.web.admin.auth.logins import MAX_FAILURES, WINDOW_MS
from redrive.web.admin.auth.tokens import TokenFile
from tests.web.conftest import Api, code

ME = "/api/v1/me"
SECRET = b"0123456789abcdef0123456789abcdef"
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def url() -> str:
    return "memory://"


# ---------------------------------------------------------------------------------------------------- static tokens


async def test_a_token_is_kept_as_a_hash_that_its_owner_alone_reads(api: Api) -> None:
    text = api.tokens.path.read_text()

    assert [] == [secret for secret in api.secrets.values() if secret in text or secret[4:] in text]
    assert 0o600 == stat.S_IMODE(api.tokens.path.stat().st_mode)
    assert {"name": "viewer-ann", "role": "viewer", "app": "shop"} == (await api.get(ME)).json()


async def test_a_revoked_token_is_refused_from_the_next_request_on(api: Api) -> None:
    TokenFile(api.tokens.path).revoke("viewer-ann")

    assert (401, "unauthenticated") == code(await api.get(ME))
    assert 200 == (await api.get(ME, Role.ADMIN)).status_code
    with pytest.raises(NotFoundError):
        api.tokens.revoke("viewer-ann")


async def test_a_damaged_file_lets_nobody_in(api: Api) -> None:
    api.tokens.path.write_text("[[tokens]]\nname = 1")

    assert (503, "keys_unavailable") == code(await api.get(ME))


@pytest.mark.parametrize("name", ["", "a b", "../x", "a\nb", "x" * 65, "-a", '"'])
def test_a_name_that_would_read_oddly_in_an_audit_trail_is_refused(tokens: TokenFile, name: str) -> None:
    with pytest.raises(ConfigurationError):
        tokens.add(name, Role.VIEWER, created_at="")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer x", "Bearer rdt_" + "A" * 43])
async def test_what_is_no_token_is_401(api: Api, header: str) -> None:
    answer = await api.client.get(ME, headers={"authorization": header})

    assert (401, "unauthenticated") == code(answer)


async def test_too_many_bad_tokens_stop_an_address_but_not_those_who_were_good_there(
    api: Api, clock: FakeClock
) -> None:
    await api.get(ME)
    for number in range(MAX_FAILURES):
        await api.client.get(ME, headers={"authorization": f"Bearer guess-{number}"})

    guess = await api.client.get(ME, headers={"authorization": "Bearer guess"})
    stranger = await api.get(ME, Role.ADMIN)
    known = await api.get(ME)
    elsewhere = httpx.ASGITransport(api.api, client=("198.51.100.7", 1))
    async with httpx.AsyncClient(transport=elsewhere, base_url="http://shop") as client:
        other = await client.get(ME, headers={"authorization": f"Bearer {api.secrets[Role.ADMIN]}"})
    await clock.advance(WINDOW_MS)
    later = await api.get(ME, Role.ADMIN)

    assert [(429, "too_many_failures")] * 2 == [code(guess), code(stranger)]
    assert "60" == guess.headers["retry-after"]
    assert [200] * 3 == [known.status_code, other.status_code, later.status_code]


async def test_no_secret_and_no_body_is_in_any_event(api: Api) -> None:
    secret = "rdt_a-guess-that-must-not-be-logged"
    await api.client.get(ME, headers={"authorization": f"Bearer {secret}"})
    await api.post("/api/v1/letters/close", {"selection": {"tenant": "kept-out-of-logs"}, "note": "n"})

    told = json.dumps([dict(event.fields) for event in api.events], default=str)
    assert "api.login_failed" in {event.name for event in api.events}
    assert "close_letters" in told
    assert [] == [text for text in (secret, "kept-out-of-logs", *api.secrets.values()) if text in told]


def test_it_is_never_open_to_everybody(app: Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for host in (None, "0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(ConfigurationError, match="open to others"):
            guard_of(app, host=host)
    with pytest.raises(ConfigurationError):
        admin_app(app)
    assert [True] * 3 == [guard_of(app, host=host)[1] is not None for host in ("127.0.0.1", "::1", "localhost")]

    TokenFile(tmp_path / "redrive-tokens.toml").add("ann", Role.ADMIN, created_at="")
    assert None is guard_of(app, host="0.0.0.0")[1]


async def test_the_one_time_token_is_good_as_long_as_its_process(
    app: Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guard, secret = guard_of(app, host="127.0.0.1")
    _next, other = guard_of(app, host="127.0.0.1")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(AdminApi(app, guard)), base_url="http://x") as client:
        good = await client.get(ME, headers={"authorization": f"Bearer {secret}"})
        bad = await client.get(ME, headers={"authorization": f"Bearer {other}"})

    assert ("one-time", "admin") == (good.json()["name"], good.json()["role"])
    assert 401 == bad.status_code
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------- JWT


class Issuer:
    """Signs tokens, and has a JWKS that can change or be away."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.keys: dict[str, Any] = {"rsa-1": RSA_KEY, "ec-1": EC_KEY}
        self.fetched = 0
        self.is_away = False

    def fetch(self, url: str) -> bytes:
        self.fetched += 1
        if self.is_away:
            raise OSError(url)
        return json.dumps({"keys": [jwk(kid, key) for kid, key in self.keys.items()]}).encode()

    def token(self, key: Any = RSA_KEY, alg: str = "RS256", kid: Any = "rsa-1", **claims: Any) -> str:
        now = self.clock.now() // 1_000
        given = {"sub": "ann", "role": "operator", "exp": now + 600, "iss": "issuer", "aud": "redrive", **claims}
        given = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(given, key, algorithm=alg, headers={"kid": kid} if kid is not None else None)


def jwk(kid: str, key: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


@pytest.fixture
def issuer(clock: FakeClock) -> Issuer:
    return Issuer(clock)


RULES = JwtRules(
    algorithms=("RS256", "ES256"), jwks_url="https://issuer.example/keys", issuer="issuer", audience="redrive"
)


class Signed:
    """The API behind JWTs."""

    def __init__(self, app: Redrive, rules: JwtRules, issuer: Issuer) -> None:
        verifier = JwtVerifier(rules, app.clock, fetch=issuer.fetch)
        self.app = AdminApi(app, Guard(app.clock, app.events, jwt=verifier))
        self.addresses = 0

    async def me(self, token: str) -> tuple[int, Any]:
        self.addresses += 1  # each from an address of its own: this is not about how often one may be wrong
        transport = httpx.ASGITransport(self.app, client=(f"10.0.{self.addresses // 250}.{self.addresses % 250}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get(ME, headers={"authorization": f"Bearer {token}"})
        return answer.status_code, answer.json()


@pytest.fixture
def signed(app: Redrive, issuer: Issuer) -> Signed:
    return Signed(app, RULES, issuer)


async def test_a_signed_token_names_who_and_what_for(signed: Signed, issuer: Issuer) -> None:
    status, me = await signed.me(issuer.token())
    by_curve = await signed.me(issuer.token(EC_KEY, "ES256", "ec-1", role=["x", "viewer", "admin"]))

    assert (200, "ann", "operator") == (status, me["name"], me["role"])
    assert (200, "admin") == (by_curve[0], by_curve[1]["role"])
    assert 1 == issuer.fetched


PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def hs256_by_hand(secret: bytes, issuer: Issuer, **head: Any) -> str:
    """As an attacker makes it: the library refuses to sign with a public key."""
    import base64
    import hashlib
    import hmac

    def packed(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    header = {"alg": "HS256", "typ": "JWT", "kid": "rsa-1", **head}
    claims = {
        "sub": "eve",
        "role": "admin",
        "exp": issuer.clock.now() // 1_000 + 600,
        "iss": "issuer",
        "aud": "redrive",
    }
    text = packed(json.dumps(header).encode()) + b"." + packed(json.dumps(claims).encode())
    return (text + b"." + packed(hmac.new(secret, text, hashlib.sha256).digest())).decode()


async def test_what_is_not_to_be_trusted_is_401(signed: Signed, issuer: Issuer) -> None:
    now = issuer.clock.now() // 1_000
    none = issuer.token(None, "none")
    bad = {
        "none": none,
        "none, spelled otherwise": none.replace(none.partition(".")[0], "eyJhbGciOiJOb05lIiwia2lkIjoicnNhLTEifQ"),
        "public key as a secret": hs256_by_hand(PEM, issuer),
        "public key as a secret, named RS256": hs256_by_hand(PEM, issuer, alg="RS256"),
        "signed by another key": issuer.token(OTHER_RSA_KEY),
        "the key of another algorithm": issuer.token(RSA_KEY, "RS256", "ec-1"),
        "an algorithm not allowed": issuer.token(RSA_KEY, "PS256"),
        "no kid, and two keys fit none": issuer.token(OTHER_RSA_KEY, kid=None),
        "a kid nobody knows": issuer.token(kid="../../etc/passwd"),
        "a kid as long as a book": issuer.token(kid="k" * 4_000),
        "over": issuer.token(exp=now - 61),
        "without an end": issuer.token(exp=None),
        "without a name": issuer.token(sub=None),
        "not valid yet": issuer.token(nbf=now + 61),
        "made in the future": issuer.token(iat=now + 61),
        "another issuer": issuer.token(iss="evil"),
        "no issuer": issuer.token(iss=None),
        "another audience": issuer.token(aud="other"),
        "no audience": issuer.token(aud=None),
        "no role": issuer.token(role=None),
        "a role that is none": issuer.token(role="root"),
        "a role that is an object": issuer.token(role={"admin": True}),
        "nobody": issuer.token(sub=""),
        "a name that breaks lines": issuer.token(sub="a\nb"),
        "long": issuer.token(x="y" * 9_000),
        "half": issuer.token().rpartition(".")[0],
        "junk": "a.b.c",
    }

    answers = {why: (await signed.me(token))[0] for why, token in bad.items()}

    assert dict.fromkeys(bad, 401) == answers


async def test_clocks_may_differ_by_a_minute(signed: Signed, issuer: Issuer) -> None:
    now = issuer.clock.now() // 1_000

    for claims in ({"exp": now - 59}, {"nbf": now + 59}, {"iat": now + 59}):
        assert 200 == (await signed.me(issuer.token(**claims)))[0]


async def test_keys_rotate_and_strangers_cannot_make_us_fetch_them_at_will(signed: Signed, issuer: Issuer) -> None:
    await signed.me(issuer.token())
    for number in range(20):
        await signed.me(issuer.token(OTHER_RSA_KEY, kid=f"junk-{number}"))
    early = issuer.fetched

    issuer.keys = {"rsa-2": OTHER_RSA_KEY}
    too_soon = await signed.me(issuer.token(OTHER_RSA_KEY, kid="rsa-2"))
    await issuer.clock.advance(REFETCH_MS)
    new = await signed.me(issuer.token(OTHER_RSA_KEY, kid="rsa-2"))
    old = await signed.me(issuer.token())

    assert (1, 401, 200, 401) == (early, too_soon[0], new[0], old[0])


async def test_without_keys_it_is_503_and_known_ones_outlive_an_outage(signed: Signed, issuer: Issuer) -> None:
    issuer.is_away = True
    away = await signed.me(issuer.token())
    issuer.is_away = False
    await issuer.clock.advance(REFETCH_MS)
    there = await signed.me(issuer.token())
    issuer.is_away = True
    await issuer.clock.advance(900_000)
    still = await signed.me(issuer.token())

    assert (503, 200, 200) == (away[0], there[0], still[0])


async def test_a_shared_secret_and_a_key_file(app: Redrive, issuer: Issuer, tmp_path: Path) -> None:
    secret, public = tmp_path / "secret", tmp_path / "key.pem"
    secret.write_bytes(SECRET + b"\n")
    public.write_bytes(PEM)
    shared = Signed(app, JwtRules(algorithms=("HS256",), secret_file=str(secret)), issuer)
    by_file = Signed(app, JwtRules(algorithms=("RS256",), key_file=str(public)), issuer)

    assert 200 == (await shared.me(issuer.token(SECRET, "HS256", None, iss=None, aud=None)))[0]
    assert 401 == (await shared.me(issuer.token(SECRET[::-1], "HS256", None, iss=None, aud=None)))[0]
    assert 401 == (await shared.me(issuer.token()))[0]
    assert 200 == (await by_file.me(issuer.token(iss=None, aud=None)))[0]
    assert 401 == (await by_file.me(hs256_by_hand(PEM, issuer)))[0]


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ({}, "algorithms"),
        ({"algorithms": ["none"], "jwks_file": "k"}, "none"),
        ({"algorithms": ["HS256", "RS256"], "jwks_file": "k"}, "mixed"),
        ({"algorithms": ["HS256"], "jwks_file": "k"}, "secret_file"),
        ({"algorithms": ["RS256"], "secret_file": "k"}, "public"),
        ({"algorithms": ["RS256"]}, "exactly one"),
        ({"algorithms": ["RS256"], "jwks_url": "http://issuer.example/k"}, "https"),
        ({"algorithms": ["RS256"], "jwks_url": "file:///etc/passwd"}, "https"),
        ({"algorithms": ["RS256"], "jwks_file": "k", "isuer": "x"}, "isuer"),
        ({"algorithms": ["HS256"], "secret_file": "/dev/null"}, "32 bytes"),
        ("text", "no such table"),
    ],
)
def test_rules_that_would_be_unsafe_are_refused(table: Any, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        jwt_rules_from(table, source="redrive.toml")
