"""Which revision a pool is at, and which ControllerRevisions should be there. Pure.

A pool stays at the revision that was made for its spec, and is rendered anew only when it asks for something else: so
an upgrade of operator, chart or CRD restarts no engine pod, and the old spec applied again is the old revision again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from kvik_operator.crd.conditions import find
from kvik_operator.crd.inferencepool import Engine, PoolSpec
from kvik_operator.names import REVISION_KIND, ConditionType, PoolKey, Reason
from kvik_operator.objects.controller_revision import (
    controller_revision,
    effective_of,
    engine_image_of,
    pod_inputs,
    pod_inputs_of,
    read_data,
    revision_data,
    revision_name,
)
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.objects.pod_template import pod_template
from kvik_operator.reconcile.adoption import Claim, claim
from kvik_operator.reconcile.drift import is_current
from kvik_operator.reconcile.dropped_fields import fields_gone, those_not_served, with_fields
from kvik_operator.reconcile.engine_choice import RunningEngine, choose_engine
from kvik_operator.reconcile.pod_state import hash_label, live_pods
from kvik_operator.reconcile.refusals import foreign, going
from kvik_operator.reconcile.types import ApplyProblem, Object, Observed, Revision, RevisionPlan

HISTORY: Final = 10
"""Revisions kept of a pool, that in use included; those that pods are left of are kept beside them."""
_HIGHEST: Final = 2**62
"""The API server has 64 bits for a number, and the next one must fit too."""
_NOT_APPLIED: Final = frozenset(
    {
        Reason.ACCESS_DENIED,
        Reason.APPLY_REFUSED,
        Reason.FOREIGN_OBJECT,
        Reason.INVALID_SPEC,
        Reason.PAUSED,
        Reason.QUOTA_EXCEEDED,
        Reason.STARTING,
    }
)
"""Of Degraded or RolloutComplete: the Deployment may not have got the spec that status speaks of."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A ControllerRevision of this pool that is as it was made."""

    obj: Object
    data: Object
    number: int

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])


def has_revision(stored: Sequence[Object], observed: Observed) -> bool:
    """Whether one of them was made for the present spec."""
    return _made_for_it(_intact(_ours(stored, observed), observed), observed) is not None


def needs_schema(stored: Sequence[Object], observed: Observed) -> bool:
    """Whether only the CRD can tell if somebody left a field out or the API server has dropped it."""
    before = _latest(_intact(_ours(stored, observed), observed))
    return before is not None and bool(_gone_since(before, observed)) and not _is_carried_out(before, observed)


def as_asked(stored: Sequence[Object], observed: Observed, not_served: Collection[str] = ()) -> Observed:
    """The pool with the fields that the API server has dropped from it, as the revision before has them.

    `not_served` are those that the CRD does not have; they matter where it `needs_schema`.
    """
    before = _latest(_intact(_ours(stored, observed), observed))
    if before is None:
        return observed
    gone = _gone_since(before, observed)
    dropped = gone if _is_carried_out(before, observed) else those_not_served(gone, not_served)
    return with_fields(observed, before.data["spec"], dropped)


def plan_revisions(
    stored: Sequence[Object], deployed: Object | None, observed: Observed, configured: EngineImage
) -> RevisionPlan:
    """`stored` are all with the pool's label, `configured` is the operator's engine for the pool's device.
    Raises PoolError as rendering and the choice of an engine do.

    `deployed` is what has the name of the pool's Deployment, read past the cache unless there `has_revision`: an
    operator that has just started has not heard of it yet.
    """
    key, uid = observed.key, observed.pool.uid
    ours = _ours(stored, observed)
    intact = _intact(ours, observed)
    data = _data(intact, deployed, observed, configured)
    name = revision_name(key, data)
    number = _number(intact, name)
    use = _revision(name, data, observed)
    blocked = _blocked(stored, observed, name)
    if blocked is not None:
        return RevisionPlan(use, blocked=blocked)
    others = [one for one in intact if one.name != name]
    kept = _kept(others, observed)
    manifests = [(data, number), *((one.data, one.number) for one in kept)]
    present = {one.name: one.obj for one in intact}
    names = {name, *(one.name for one in kept)}
    return RevisionPlan(
        use,
        write=tuple(
            manifest
            for manifest in (controller_revision(key, uid, *one) for one in manifests)
            if not _is_there(present, manifest)
        ),
        delete=tuple(obj for obj in ours if obj["metadata"]["name"] not in names or obj not in present.values()),
    )


def stays_at(revision: Revision, observed: Observed) -> bool:
    """The pool asks for nothing that this revision is not."""
    return revision.inputs == pod_inputs(_with_kept(observed, revision).pool.spec)


def with_values_of(observed: Observed, revision: Revision) -> Observed:
    """What is in effect: the values of the revision, but for scaling, which no pod depends on."""
    observed = _with_kept(observed, revision)
    return replace(observed, effective=replace(revision.effective, scaling=observed.effective.scaling))


def _with_kept(observed: Observed, revision: Revision) -> Observed:
    if not revision.kept:
        return observed
    gone = fields_gone(revision.inputs, pod_inputs(observed.pool.spec))
    return with_fields(observed, msgspec.to_builtins(revision.inputs), revision.kept & gone)


def _latest(intact: Sequence[_Stored]) -> _Stored | None:
    return max(intact, key=lambda one: one.number, default=None)


def _gone_since(before: _Stored, observed: Observed) -> frozenset[str]:
    inputs = pod_inputs_of(before.data)
    return frozenset() if inputs is None else fields_gone(inputs, pod_inputs(observed.pool.spec))


def _is_carried_out(before: _Stored, observed: Observed) -> bool:
    """Whether the present generation of the pool was carried out as this revision."""
    told = (observed.pool.status.get("revision") or {}).get("updated")
    return told == before.name and _carried_out(observed)


def _ours(stored: Sequence[Object], observed: Observed) -> list[Object]:
    return [obj for obj in stored if claim(obj, observed.key, observed.pool.uid) is Claim.OURS]


def _intact(ours: Sequence[Object], observed: Observed) -> list[_Stored]:
    return [one for obj in ours if (one := _read(observed.key, obj)) is not None]


def _made_for_it(intact: Sequence[_Stored], observed: Observed) -> _Stored | None:
    """The latest, if there are several."""
    wanted = pod_inputs(observed.pool.spec)
    made_for_it = [one for one in intact if pod_inputs_of(one.data) == wanted]
    return max(made_for_it, key=lambda one: one.number, default=None)


def _data(intact: Sequence[_Stored], deployed: Object | None, observed: Observed, configured: EngineImage) -> Object:
    """What the revision in use holds: as stored, else as the Deployment or the one before has it, else rendered now."""
    made_for_it = _made_for_it(intact, observed)
    if made_for_it is not None:
        return made_for_it.data
    before = _latest(intact)
    ran = _deployed_template(deployed, observed)
    image = choose_engine(observed.pool.spec, configured, _running(before, ran))
    template = (
        _template_before(before, observed, image)
        or _applied_template(ran, observed, image)
        or pod_template(observed.key, observed.pool.spec, observed.effective, image)
    )
    return revision_data(observed.raw_spec, observed.pool.spec, observed.effective, template)


def _running(before: _Stored | None, ran: Object | None) -> RunningEngine | None:
    if before is not None:
        inputs = pod_inputs_of(before.data)
        return RunningEngine(before.data["image"], None if inputs is None else inputs.resources.device)
    reference = engine_image_of(ran)
    return None if reference is None else RunningEngine(reference, None)


def _template_before(before: _Stored | None, observed: Observed, image: EngineImage) -> Object | None:
    """That of the revision in use until now, if the pool only says what it already runs: no reason to roll."""
    if before is None or before.data["image"] != image.reference:
        return None
    inputs = pod_inputs_of(before.data)
    same = inputs is not None and _unnamed(inputs) == _unnamed(pod_inputs(observed.pool.spec))
    template: Object = before.data["template"]
    return template if same else None


def _unnamed(inputs: PoolSpec) -> PoolSpec:
    return msgspec.structs.replace(inputs, engine=Engine())


def _deployed_template(deployed: Object | None, observed: Observed) -> Object | None:
    """None: there is no Deployment, or it is not this pool's, or it has no engine of ours."""
    if deployed is None or claim(deployed, observed.key, observed.pool.uid) is not Claim.OURS:
        return None
    template: Object = (deployed.get("spec") or {}).get("template") or {}
    return None if engine_image_of(template) is None or hash_label(template) is None else template


def _applied_template(ran: Object | None, observed: Observed, image: EngineImage) -> Object | None:
    """The Deployment's template, if it is what the present spec was last carried out with: then no revision was stored,
    by an operator that knew of none, or it was deleted since. A roll would have no reason in the spec.

    Status says so, or the template does itself: replicas alone may have changed since status was written.
    """
    if ran is None or _carried_out(observed):
        return ran
    reference = engine_image_of(ran)
    if reference is None or (observed.pool.spec.engine.version is not None and reference != image.reference):
        return None
    rendered = pod_template(observed.key, observed.pool.spec, observed.effective, replace(image, reference=reference))
    return ran if hash_label(ran) == hash_label(rendered) else None


def _carried_out(observed: Observed) -> bool:
    """Whether status says that the present spec has reached the Deployment."""
    status = observed.pool.status
    conditions = status.get("conditions") or ()
    told = [find(conditions, type_) or {} for type_ in (ConditionType.DEGRADED, ConditionType.ROLLOUT_COMPLETE)]
    refused = any(condition.get("reason") in _NOT_APPLIED for condition in told)
    return status.get("observedGeneration") == observed.pool.generation and not refused


def _read(key: PoolKey, obj: Object) -> _Stored | None:
    data, number = read_data(key, obj), obj.get("revision")
    if data is None or not isinstance(number, int) or not 0 < number < _HIGHEST:
        return None
    return _Stored(obj, data, number)


def _number(intact: Sequence[_Stored], name: str) -> int:
    """The highest; one that is gone back to gets a new one."""
    top = max((one.number for one in intact if one.name != name), default=0)
    own = next((one.number for one in intact if one.name == name), 0)
    return own if own > top else top + 1


def _revision(name: str, data: Object, observed: Observed) -> Revision:
    return Revision(
        name=name,
        inputs=pod_inputs(observed.pool.spec),
        effective=effective_of(data, observed.effective),
        image=data["image"],
        template=data["template"],
        kept=observed.kept,
    )


def _blocked(stored: Sequence[Object], observed: Observed, name: str) -> ApplyProblem | None:
    for obj in stored:
        if obj["metadata"]["name"] == name:
            match claim(obj, observed.key, observed.pool.uid):
                case Claim.FOREIGN:
                    return foreign(REVISION_KIND, name)
                case Claim.GOING:
                    return going(REVISION_KIND, name)
                case Claim.OURS:
                    return None
    return None


def _kept(others: Sequence[_Stored], observed: Observed) -> list[_Stored]:
    """The latest, and those that pods are left of."""
    running = {hash_label(pod) for pod in live_pods(observed.pods)}
    by_age = sorted(others, key=lambda one: one.number, reverse=True)
    latest, older = by_age[: HISTORY - 1], by_age[HISTORY - 1 :]
    return latest + [one for one in older if hash_label(one.data["template"]) in running]


def _is_there(present: Mapping[str, Object], manifest: Mapping[str, Any]) -> bool:
    stored = present.get(manifest["metadata"]["name"])
    return stored is not None and is_current(stored, manifest)
