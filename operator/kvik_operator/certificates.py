"""Certificates: made here, kept in a Secret, and replaced before they end, so that no reader notices.

Each certificate has an authority of its own, whose key is forgotten once it has signed. A new pair is announced first:
its authority stands beside the old one, where those look who have to believe it, for a while before it is presented.
Pure, given `now`, but for the random keys.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
"""The end of a certificate."""
OVERLAP: Final = timedelta(seconds=60)
"""How long a new authority is announced, to all who have to believe it, before its certificate is presented."""
BACKDATED: Final = timedelta(minutes=5)
"""Clocks of a cluster differ."""
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises of certificates and keys that it cannot read."""


class Use(StrEnum):
    """What a certificate is for, as it stands in its names."""

    METRICS_API = "kvik-metrics-api"
    KEDA_SCALER = "kvik-keda-scaler"
    KEDA_CLIENT = "kvik-keda-client"

    @property
    def extended(self) -> x509.ObjectIdentifier:
        return ExtendedKeyUsageOID.CLIENT_AUTH if self is Use.KEDA_CLIENT else ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM: a certificate and its key."""

    certificate: str
    key: str

    @property
    def end(self) -> datetime:
        """Of one whose certificate can be read."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc

    def parsed(self) -> x509.Certificate | None:
        """None: not a certificate, not a key, or not of each other."""
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate.encode())
            key = serialization.load_pem_private_key(self.key.encode(), None)
            return certificate if certificate.public_key() == key.public_key() else None
        except UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class Held:
    """What the Secret holds. `next` is not presented yet; `authorities` is PEM, newest first, of both.

    `announced`: since when all who have to believe `next` are known to have its authority; None: not known of all yet.
    """

    current: Pair
    authorities: tuple[str, ...]
    next: Pair | None = None
    announced: datetime | None = None

    @property
    def bundle(self) -> str:
        return "".join(self.authorities)

    @classmethod
    def from_secret(cls, secret: Mapping[str, Any], prefix: str = "") -> Self | None:
        """None: it is empty, or what is in it is not what was put there. `prefix`: of the names of its entries."""
        data = {name: value for name, value in (secret.get("data") or {}).items() if name.startswith(prefix)}
        try:
            text = {
                name.removeprefix(prefix): base64.b64decode(value, validate=True).decode()
                for name, value in data.items()
            }
        except (binascii.Error, ValueError):
            return None
        if not all(text.get(name) for name in ("tls.crt", "tls.key", "ca.crt")):
            return None
        following = Pair(text["next.crt"], text["next.key"]) if text.get("next.crt") and text.get("next.key") else None
        announced = _time(text.get("next.announced", "")) if following is not None else None
        return cls(Pair(text["tls.crt"], text["tls.key"]), _split(text["ca.crt"]), following, announced)

    def secret_data(self, prefix: str = "") -> dict[str, str]:
        text = {"tls.crt": self.current.certificate, "tls.key": self.current.key, "ca.crt": self.bundle}
        if self.next is not None:
            text |= {"next.crt": self.next.certificate, "next.key": self.next.key}
        if self.announced is not None:
            text["next.announced"] = self.announced.isoformat()
        return {prefix + name: base64.b64encode(value.encode()).decode() for name, value in text.items()}


def plan(
    held: Held | None, names: Sequence[str], now: datetime, *, announced: bool, use: Use = Use.METRICS_API
) -> Held:
    """What the Secret should hold now; `held` itself if that is right. `names`: DNS names, for which it is.

    `announced`: those who have to believe it have `held`'s bundle.
    """
    if held is None or not held.authorities or not usable(held.current, names, now):
        pair, authority = make_pair(names, now, use)
        return Held(pair, (authority, *(_unexpired(held.authorities, now) if held is not None else ())))
    if held.next is not None and not usable(held.next, names, now):
        held = replace(held, next=None, announced=None)
    if held.next is None and held.current.end - now <= RENEW_BEFORE:
        pair, authority = make_pair(names, now, use)
        return Held(held.current, (authority, *_unexpired(held.authorities, now)), pair)
    if held.next is None:
        return held
    if not announced:
        return replace(held, announced=None)
    if held.announced is None or held.announced > now:  # by the clock of another leader
        return replace(held, announced=now)
    return Held(held.next, _unexpired(held.authorities, now)) if now - held.announced >= OVERLAP else held


def usable(pair: Pair, names: Sequence[str], now: datetime) -> bool:
    certificate = pair.parsed()
    if certificate is None or not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return False
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *UNREADABLE):
        return False
    return set(names) <= set(extension.value.get_values_for_type(x509.DNSName))


def make_pair(names: Sequence[str], now: datetime, use: Use = Use.METRICS_API) -> tuple[Pair, str]:
    """A pair, and the PEM of its authority."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signer = _name(f"{use}-ca-{now.astimezone(UTC):%Y%m%d%H%M%S}")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        _certificate(signer, signer, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _certificate(_name(use), signer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use.extended]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(_pem(certificate), secret.decode()), _pem(authority)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFE)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _time(text: str) -> datetime | None:
    """None: not a time with its offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _split(bundle: str) -> tuple[str, ...]:
    try:
        return tuple(_pem(certificate) for certificate in x509.load_pem_x509_certificates(bundle.encode()))
    except UNREADABLE:
        return ()


def _unexpired(authorities: Sequence[str], now: datetime) -> tuple[str, ...]:
    parsed = ((pem, x509.load_pem_x509_certificate(pem.encode())) for pem in authorities)
    return tuple(pem for pem, certificate in parsed if now < certificate.not_valid_after_utc)
