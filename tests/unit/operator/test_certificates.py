"""The life of the serving certificate, by times that are passed in."""

import base64
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from kvik_operator.certificates import LIFE, OVERLAP, RENEW_BEFORE, Held, Pair, make_pair, plan, usable

NAMES = ["kvik-operator.kvik-system.svc"]
START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
DUE = START + LIFE - RENEW_BEFORE


def planned(held: Held | None, now: datetime, *, announced: bool = True) -> Held:
    return plan(held, NAMES, now, announced=announced)


@pytest.fixture(scope="module")
def first() -> Held:
    return planned(None, START)


def test_a_new_pair_is_for_the_name_and_signed_by_its_authority(first: Held) -> None:
    certificate = first.current.parsed()
    assert certificate is not None
    (authority,) = x509.load_pem_x509_certificates(first.bundle.encode())
    certificate.verify_directly_issued_by(authority)
    assert usable(first.current, NAMES, START)
    assert not usable(first.current, ["other.svc"], START)


def test_nothing_changes_before_it_is_due(first: Held) -> None:
    assert planned(first, DUE - timedelta(seconds=1)) is first


def test_a_new_authority_is_announced_before_its_certificate_is_presented(first: Held) -> None:
    announced = planned(first, DUE)
    assert announced.current == first.current
    assert announced.next is not None
    assert announced.authorities[1:] == first.authorities
    late = DUE + 3 * OVERLAP
    assert planned(announced, late, announced=False) == announced  # not everybody knows it yet
    known = planned(announced, late)
    assert (known.next, known.announced) == (announced.next, late)
    assert planned(known, late + OVERLAP / 2) is known
    assert planned(known, late + OVERLAP, announced=False) == announced  # somebody has forgotten it
    presented = planned(known, late + OVERLAP)
    assert (presented.current, presented.next) == (announced.next, None)
    assert presented.authorities == announced.authorities  # replicas that have not looked yet present the old one
    assert planned(presented, START + LIFE) is presented


def test_an_announcement_that_another_clock_dates_ahead_is_dated_anew(first: Held) -> None:
    announced = replace(planned(first, DUE), announced=DUE + LIFE)
    assert planned(announced, DUE).announced == DUE


def test_an_authority_that_has_ended_goes_with_the_next_one(first: Held) -> None:
    second = planned(planned(planned(first, DUE), DUE), DUE + OVERLAP)
    third = planned(second, DUE + LIFE - RENEW_BEFORE)
    assert len(third.authorities) == 2
    assert first.authorities[0] not in third.bundle


def test_a_certificate_that_is_of_no_use_is_replaced_at_once(first: Held) -> None:
    other, _ = make_pair(["other.svc"], START)
    crossed = Pair(first.current.certificate, other.key)
    for current in (other, crossed, Pair("x", "y")):
        got = planned(replace(first, current=current), START)
        assert usable(got.current, NAMES, START)
        assert got.authorities[1:] == first.authorities
    assert usable(planned(first, START + LIFE).current, NAMES, START + LIFE)
    assert usable(planned(replace(first, authorities=()), START).current, NAMES, START)


def test_a_next_one_of_no_use_is_made_anew(first: Held) -> None:
    announced = planned(first, DUE)
    again = planned(replace(announced, next=Pair("x", "y"), announced=DUE), DUE)
    assert again.current == first.current
    assert again.announced is None
    assert again.next is not None
    assert usable(again.next, NAMES, DUE)


def test_the_secret_gives_back_what_was_put_into_it(first: Held) -> None:
    announced = planned(first, DUE)
    for held in (first, announced, planned(announced, DUE)):
        assert Held.from_secret({"data": held.secret_data()}) == held


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "eA=="}, {"tls.crt": "%", "tls.key": "eA==", "ca.crt": "eA=="}])
def test_a_secret_with_anything_else_holds_nothing(data: dict[str, str] | None) -> None:
    assert Held.from_secret({"data": data}) is None


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-01T12:00:00"])
def test_an_announcement_without_a_time_is_none(first: Held, time: str) -> None:
    announced = planned(first, DUE)
    data = announced.secret_data() | {"next.announced": base64.b64encode(time.encode()).decode()}
    assert Held.from_secret({"data": data}) == announced


CURVE, VERSION, EXTENDED_USAGE, NAMES_EXTENSION = (
    bytes.fromhex(text) for text in ("2a8648ce3d030107", "a003020102", "551d25", "551d11")
)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(CURVE, CURVE[:-1] + b"\x63"), (VERSION, VERSION[:-1] + b"\x05"), (EXTENDED_USAGE, NAMES_EXTENSION)],
    ids=["a curve that nobody knows", "a version that there is not", "names given twice"],
)
def test_a_certificate_that_the_library_cannot_read_is_of_no_use(first: Held, was: bytes, becomes: bytes) -> None:
    """What it raises of these is no ValueError: the operator ended of it, and ended again when it had started."""
    certificate = ssl.PEM_cert_to_DER_cert(first.current.certificate).replace(was, becomes)
    broken = Pair(ssl.DER_cert_to_PEM_cert(certificate), first.current.key)
    assert broken.certificate != first.current.certificate
    assert not usable(broken, NAMES, START)
    assert usable(planned(replace(first, current=broken), START).current, NAMES, START)


def test_a_key_that_the_library_cannot_read_is_of_no_use(first: Held) -> None:
    body = base64.b64decode("".join(first.current.key.splitlines()[1:-1])).replace(CURVE, CURVE[:-1] + b"\x63")
    key = f"-----BEGIN PRIVATE KEY-----\n{base64.encodebytes(body).decode()}-----END PRIVATE KEY-----\n"
    assert not usable(Pair(first.current.certificate, key), NAMES, START)


def test_a_bundle_that_is_no_certificate_holds_no_authority(first: Held) -> None:
    held = Held.from_secret({"data": {**first.secret_data(), "ca.crt": "eA=="}})
    assert held is not None
    assert held.authorities == ()
