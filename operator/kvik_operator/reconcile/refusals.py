"""What a call that failed means for a pool: the queue tries again, the namespace goes, or a person has to act. Pure."""

from kvik_operator.errors import ClusterError, Conflict, Refused, Unavailable
from kvik_operator.names import Reason
from kvik_operator.reconcile.types import ApplyProblem


def namespace_goes(error: ClusterError) -> bool:
    return isinstance(error, Refused) and error.namespace_terminating


def answered(error: ClusterError) -> ClusterError:
    """The error, if the API server answered at all; else raises it: whatever comes next would fare the same."""
    if error.status is None:
        raise error
    return error


def passes(found: ApplyProblem | ClusterError) -> bool:
    """409, 429 and 503 pass by themselves; behind a 500 mostly stands a webhook that fails until it is mended."""
    return isinstance(found, Conflict) or (isinstance(found, Unavailable) and found.status != 500)


def overlook(error: ClusterError) -> None:
    """For what is done as far as it can be. Raises what the queue should retry: what comes next would fare so too."""
    if isinstance(error, Unavailable) and passes(error):
        raise error


def problem(found: ApplyProblem | ClusterError) -> ApplyProblem:
    """What a person should read about it. Raises what the queue should retry instead."""
    if isinstance(found, ApplyProblem):
        return found
    if passes(found):
        raise found
    if isinstance(found, Refused) and found.access_denied:
        return ApplyProblem(Reason.ACCESS_DENIED, f"the operator lacks a permission: {found}")
    if "exceeded quota" in found.message:
        return ApplyProblem(Reason.QUOTA_EXCEEDED, str(found))
    return ApplyProblem(Reason.APPLY_REFUSED, str(found))


def foreign(kind: str, name: str) -> ApplyProblem:
    text = f"{kind} {name} exists and is not this pool's: rename the pool, or delete the {kind}"
    return ApplyProblem(Reason.FOREIGN_OBJECT, text)


def going(kind: str, name: str) -> ApplyProblem:
    return ApplyProblem(Reason.STARTING, f"waiting until the old {kind} {name} is gone")
