"""The life of the serving certificate, by times that are passed in."""

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
    assert planned(announced, DUE + OVERLAP / 2) is announced
    assert planned(announced, DUE + OVERLAP, announced=False) is announced  # nobody knows it yet
    presented = planned(announced, DUE + OVERLAP)
    assert (presented.current, presented.next) == (announced.next, None)
    assert presented.authorities == announced.authorities  # replicas that have not looked yet present the old one
    assert planned(presented, START + LIFE) is presented


def test_an_authority_that_has_ended_goes_with_the_next_one(first: Held) -> None:
    second = planned(planned(first, DUE), DUE + OVERLAP)
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
    again = planned(replace(announced, next=Pair("x", "y")), DUE)
    assert again.current == first.current
    assert again.next is not None
    assert usable(again.next, NAMES, DUE)


def test_the_secret_gives_back_what_was_put_into_it(first: Held) -> None:
    for held in (first, planned(first, DUE)):
        assert Held.from_secret({"data": held.secret_data()}) == held


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "eA=="}, {"tls.crt": "%", "tls.key": "eA==", "ca.crt": "eA=="}])
def test_a_secret_with_anything_else_holds_nothing(data: dict[str, str] | None) -> None:
    assert Held.from_secret({"data": data}) is None


def test_a_bundle_that_is_no_certificate_holds_no_authority(first: Held) -> None:
    held = Held.from_secret({"data": {**first.secret_data(), "ca.crt": "eA=="}})
    assert held is not None
    assert held.authorities == ()
