"""Client certificates for tests of who is believed, each of an authority of its own."""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvik_operator.certificates import Pair


def client_pair(name: str, now: datetime) -> tuple[Pair, str]:
    """A pair for a client of this common name, and the PEM of the authority that signed it."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", "authority", authority_key.public_key(), now).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    certificate = _certificate(name, "authority", key.public_key(), now).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    signed = [one.sign(authority_key, hashes.SHA256()).public_bytes(pem).decode() for one in (certificate, authority)]
    return Pair(signed[0], secret.decode()), signed[1]


def _certificate(subject: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )
