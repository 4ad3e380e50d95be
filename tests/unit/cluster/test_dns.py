import struct

from tests.cluster.dns import first_address, query

NAME = "kubernetes.default.svc.cluster.local"


def reply(identifier: int, answers: bytes, count: int, flags: int = 0x8180) -> bytes:
    return struct.pack(">6H", identifier, flags, 1, count, 0, 0) + query(NAME, identifier)[12:] + answers


def record(kind: int, data: bytes) -> bytes:
    return b"\xc0\x0c" + struct.pack(">2HIH", kind, 1, 5, len(data)) + data


def test_the_address_after_an_alias_is_found():
    answers = record(5, b"\x01x\x00") + record(1, bytes([10, 96, 0, 1]))
    assert first_address(reply(7, answers, 2), 7) == "10.96.0.1"


def test_a_reply_to_another_question_is_no_answer():
    assert first_address(reply(8, record(1, bytes([10, 96, 0, 1])), 1), 7) is None


def test_a_failure_is_no_answer():
    assert first_address(reply(7, b"", 0, flags=0x8182), 7) is None


def test_a_cut_reply_is_no_answer():
    assert first_address(b"\0\7", 7) is None
